"""The export from end to end: one function, ten readable lines."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

import onnx_ir as ir

from wiola_export import bundle
from wiola_export.evaluate.golden import record_self_test
from wiola_export.extras import explain_missing_extra
from wiola_export.measure import measure, texts_to_measure
from wiola_export.options import DEFAULT_BLOCK_SIZES, ExportOptions, Quantization
from wiola_export.output import check_target, output_folder
from wiola_export.progress import Progress, Silent
from wiola_export.quantize.formats import Blocks, FloatName, Floats, SignedRows
from wiola_export.quantize.policy import Policy
from wiola_export.report.files import write_report
from wiola_export.report.model_card import model_card
from wiola_export.report.report import Report
from wiola_export.serialize import stored_bytes, write_model
from wiola_export.source import Model, find_model
from wiola_export.weights import bind
from wiola_runtime.manifest import Manifest, QuantizedTensor, Target

CARD = "README.md"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle that has been written."""

    folder: Path
    manifest: Manifest
    report: Report | None


def export(options: ExportOptions, progress: Progress | None = None) -> Bundle:
    """Write the bundle that the options describe, whole or not at all.

    Raises:
        ExportError: Something about source, options or output is wrong; nothing was written.
    """
    progress = progress or Silent()
    model = find_model(options.source)
    for warning in model.warnings:
        progress.warn(warning)
    out = options.out or Path(bundle.bundle_name(model, options))
    sources = [model.checkpoint.folder] if model.checkpoint else []
    check_target(out, force=options.force, sources=sources)
    texts = texts_to_measure(options.text)
    graph, stored = build_graph(model, options, progress)
    needed = stored_bytes(graph.graph)
    with output_folder(out, force=options.force, needed_bytes=needed, sources=sources) as folder:
        progress.stage("writing weights")
        write_model(graph, folder, progress)
        manifest = describe_on_disk(model, options, graph, stored, folder)
        progress.stage("recording the self-test")
        manifest = with_self_test(manifest, folder)
        report = None
        if options.report:
            report = measure(folder, manifest, model, texts, progress)
            write_report(report, folder)
        card = model_card(manifest, report)
        (folder / CARD).write_text(card, encoding="utf-8", newline="\n")
        manifest = bundle.write_manifest(manifest, folder)
    return Bundle(folder=out, manifest=manifest, report=report)


def build_graph(
    model: Model, options: ExportOptions, progress: Progress
) -> tuple[ir.Model, Sequence[QuantizedTensor]]:
    """Trace a model and lower it for the target; no weight is read but a few vectors.

    Raises:
        MissingExtraError: torch is not installed.
    """
    progress.stage("tracing")
    with explain_missing_extra():
        from wiola_export.lower import lower  # noqa: PLC0415  torch is heavy
        from wiola_export.trace import trace  # noqa: PLC0415
    semantic = trace(model.family, model.config)
    names = list(semantic.graph.initializers)
    bind(semantic, model.weights, {name: model.config.reordered(name) for name in names})
    progress.stage(f"lowering for {options.target}")
    policy = make_policy(options.quantization, options.target)
    context = model.config.max_position_embeddings
    return lower(semantic, options.target, policy, context_length=context)


def describe_on_disk(
    model: Model,
    options: ExportOptions,
    graph: ir.Model,
    stored: Sequence[QuantizedTensor],
    folder: Path,
) -> Manifest:
    """Add the tokenizer to the folder and write a first manifest, with which it can be run."""
    bundle.copy_tokenizer(model, folder)
    return bundle.write_manifest(bundle.describe(model, options, graph.graph, stored), folder)


def with_self_test(manifest: Manifest, folder: Path) -> Manifest:
    """Record the self-test of a folder that can be run, and add it to its manifest."""
    half = any(spec.dtype == "float16" for spec in manifest.inputs)
    test = record_self_test(folder, manifest.precision, half=half)
    return bundle.write_manifest(dataclasses.replace(manifest, self_test=test), folder)


def make_policy(quantization: Quantization, target: Target) -> Policy:
    """Translate precision and scheme into the formats of weights."""
    floats: FloatName = "float16" if target == "cuda" else "float32"
    size = quantization.resolved_block_size or DEFAULT_BLOCK_SIZES["int8"]
    tables = Blocks(bits=8, block_size=size, symmetric=quantization.symmetric, scales=floats)
    match quantization.resolved_scheme:
        case "float":
            return Policy(matrices=Floats(floats), tables=Floats(floats), floats=floats)
        case "dynamic":
            return Policy(matrices=SignedRows(), tables=tables, floats=floats)
        case "weight-only":
            bits = cast("Literal[4, 8]", quantization.bits)
            matrices = dataclasses.replace(tables, bits=bits)
            return Policy(matrices=matrices, tables=tables, floats=floats)
