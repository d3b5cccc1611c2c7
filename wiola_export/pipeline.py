"""The export from end to end: one function, ten readable lines."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from wiola_calibration.corpus import Text
from wiola_export import bundle
from wiola_export.evaluate.cache_scales import cache_scales
from wiola_export.evaluate.golden import record_self_test
from wiola_export.extras import explain_missing_extra
from wiola_export.float_graph import build_float_graph
from wiola_export.gate import require_accuracy, require_rounding
from wiola_export.measure import measure, texts_to_measure
from wiola_export.options import ExportOptions
from wiola_export.output import check_target, output_folder
from wiola_export.passes.quantize_cache import QuantizeCache
from wiola_export.prepare import Prepared, make_policy, open_calibration, prepared_weights
from wiola_export.progress import Progress, Silent
from wiola_export.quantize.plan import FILE_NAME as PLAN
from wiola_export.quantize.plan import plan_of
from wiola_export.report.files import write_report
from wiola_export.report.model_card import model_card
from wiola_export.report.report import Report
from wiola_export.serialize import stored_bytes, write_graph, write_model
from wiola_export.source import Model, find_model
from wiola_export.weights import bind
from wiola_runtime.manifest import Manifest, Precision, QuantizedTensor

CARD = "README.md"
MORE_BITS = "8 bits: "  # of a tensor that a plan wants in fewer


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
    calibration = open_calibration(options)
    with prepared_weights(model, options, calibration, texts, progress) as prepared:
        graph, stored = build_graph(model, options, progress, prepared)
        require_rounding(stored, options.quantization.precision)
        for tensor in stored:
            if tensor.note.startswith(MORE_BITS):
                progress.warn(f"{tensor.name} is stored in {tensor.note}")
        job = _Job(model, options, texts, prepared, progress)
        needed = stored_bytes(graph.graph)
        with output_folder(
            out, force=options.force, needed_bytes=needed, sources=sources
        ) as folder:
            manifest = _write(job, graph, stored, folder)
            report = _measured(job, manifest, folder) if options.report else None
            if report is not None:
                require_accuracy(report, options.budget)
                write_report(report, folder)
            card = model_card(manifest, report)
            (folder / CARD).write_text(card, encoding="utf-8", newline="\n")
            manifest = bundle.write_manifest(manifest, folder)
    return Bundle(folder=out, manifest=manifest, report=report)


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    """What every stage of one export knows."""

    model: Model
    options: ExportOptions
    texts: Sequence[Text]
    prepared: Prepared
    progress: Progress


def _write(job: _Job, graph: ir.Model, stored: Sequence[QuantizedTensor], folder: Path) -> Manifest:
    """Write a bundle that can be run, with its self-test."""
    job.progress.stage("writing weights")
    write_model(graph, folder, job.progress)
    if job.options.int8_cache:
        job.progress.stage("measuring keys and values")
        manifest = bundle.describe(job.model, job.options, graph.graph, stored)
        quantize_cache(graph, folder, manifest, job.prepared)
    manifest = describe_on_disk(job.model, job.options, graph, stored, folder)
    job.progress.stage("recording the self-test")
    return with_self_test(manifest, folder)


def _measured(job: _Job, manifest: Manifest, folder: Path) -> Report:
    def unrounded(
        model: Model, options: ExportOptions, progress: Progress
    ) -> tuple[ir.Model, Sequence[QuantizedTensor]]:
        policy = make_policy(options.quantization, options.target)
        floats = dataclasses.replace(job.prepared, policy=policy)
        return build_graph(model, options, progress, floats)

    build = functools.partial(
        build_float_graph, job.model, build=unrounded, describe=describe_on_disk
    )
    return measure(
        folder,
        manifest,
        job.model,
        job.texts,
        job.progress,
        float_graph=build if job.model.checkpoint else None,
        sensitivity=job.prepared.sensitivity_of(manifest.quantization.tensors),
        calibration=job.prepared.record,
    )


def build_graph(
    model: Model, options: ExportOptions, progress: Progress, prepared: Prepared | None = None
) -> tuple[ir.Model, Sequence[QuantizedTensor]]:
    """Trace a model and lower it for the target; no weight is read but a few vectors.

    Weights are stored as `prepared` says, without it as the options say and uncalibrated.

    Raises:
        MissingExtraError: torch is not installed.
    """
    progress.stage("tracing")
    with explain_missing_extra():
        from wiola_export.lower import lower  # noqa: PLC0415  torch is heavy
        from wiola_export.trace import trace  # noqa: PLC0415
    semantic = trace(model.family, model.config)
    prepared = prepared or Prepared(policy=make_policy(options.quantization, options.target))
    bind(semantic, lambda name, _: prepared.weight(model, name))
    progress.stage(f"lowering for {options.target}")
    policy = prepared.policy
    context = model.config.max_position_embeddings
    return lower(semantic, options.target, policy, context_length=context)


def quantize_cache(graph: ir.Model, folder: Path, manifest: Manifest, prepared: Prepared) -> None:
    """Measure keys and values of a written graph on a text, and let it keep them as int8."""
    assert prepared.windows is not None, "an int8 cache calibrates"
    QuantizeCache(cache_scales(folder, manifest, prepared.windows))(graph)
    write_graph(graph, folder)


def describe_on_disk(
    model: Model,
    options: ExportOptions,
    graph: ir.Model,
    stored: Sequence[QuantizedTensor],
    folder: Path,
) -> Manifest:
    """Add the tokenizer to the folder and write a first manifest, with which it can be run."""
    bundle.copy_tokenizer(model, folder)
    if options.quantization.resolved_scheme == "weight-only":
        (folder / PLAN).write_text(plan_of(stored).to_json(), encoding="utf-8", newline="\n")
    return bundle.write_manifest(bundle.describe(model, options, graph.graph, stored), folder)


def with_self_test(manifest: Manifest, folder: Path) -> Manifest:
    """Record the self-test of a folder that can be run, and add it to its manifest."""
    types = {spec.dtype for spec in manifest.inputs}
    precision: Precision = "int8" if "int8" in types else manifest.precision
    test = record_self_test(folder, precision, half="float16" in types)
    return bundle.write_manifest(dataclasses.replace(manifest, self_test=test), folder)
