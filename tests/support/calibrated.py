"""Bundles that an export calibrates, as a user gets them; traced once for each shape."""

from unittest import mock

from support import oracles

from wiola_export import pipeline
from wiola_export.measure import measure_accuracy, texts_to_measure
from wiola_export.options import CalibrationOptions, ExportOptions, Quantization, Source
from wiola_export.progress import Silent
from wiola_export.source import find_model

FEW = CalibrationOptions(windows=16)


def export(checkpoint, out, *, calibration=FEW, target="cpu", **quantization):
    """Export a checkpoint to INT8 without a report; return the folder."""
    options = ExportOptions(
        source=Source(checkpoint=checkpoint),
        quantization=Quantization(precision="int8", **quantization),
        calibration=calibration,
        target=target,
        out=out,
        report=False,
    )
    with mock.patch("wiola_export.trace.trace", oracles.shared_trace):
        return pipeline.export(options).folder


def drop(bundle, checkpoint):
    """Return what a bundle loses against its checkpoint on the packaged texts."""
    model = find_model(Source(checkpoint=checkpoint))
    return measure_accuracy(bundle, model, texts_to_measure(None), Silent()).drop
