"""Graphs with float weights, and bundles of a model in memory, traced once for each shape."""

from unittest import mock

from support import oracles

from wiola_export import pipeline
from wiola_export.float_graph import build_float_graph
from wiola_export.options import ExportOptions, Source
from wiola_export.progress import Silent
from wiola_export.serialize import write_model
from wiola_export.source import find_model


def build(model, target):
    """Build the graph of a target by the pipeline's own functions."""
    with mock.patch("wiola_export.trace.trace", oracles.shared_trace):
        return build_float_graph(
            model, target, build=pipeline.build_graph, describe=pipeline.describe_on_disk
        )


def builder(checkpoint):
    """Return what builds the graph of a target of a checkpoint, as `measure` wants it."""
    model = find_model(Source(checkpoint=checkpoint))
    return lambda target: build(model, target)


def write_bundle(model, folder, quantization):
    """Write a model for the CPU, whatever its configuration says, without self-test."""
    source = Source(checkpoint=model.checkpoint.folder)
    options = ExportOptions(source=source, quantization=quantization, target="cpu")
    with mock.patch("wiola_export.trace.trace", oracles.shared_trace):
        graph, stored = pipeline.build_graph(model, options, Silent())
    folder.mkdir()
    write_model(graph, folder, Silent())
    pipeline.describe_on_disk(model, options, graph, stored, folder)
    return folder
