"""The graph of a bundle before any weight is quantized, to tell conversion from quantization."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import onnx_ir as ir

from wiola_export.options import ExportOptions, Quantization, Source
from wiola_export.progress import Progress, Silent
from wiola_export.quantize.recipes import PartTensor
from wiola_export.serialize import stored_bytes, write_model
from wiola_export.source import Model
from wiola_export.weights import StackedWeight, Weight
from wiola_runtime.manifest import QuantizedTensor, Target

FloatPrecision = Literal["fp32", "fp16"]


class BuildGraph(Protocol):
    """Traces a model and lowers it, as an export does."""

    def __call__(
        self, model: Model, options: ExportOptions, progress: Progress
    ) -> tuple[ir.Model, Sequence[QuantizedTensor]]:
        """Return the graph and how its matrices are stored."""
        ...


class Describe(Protocol):
    """Adds tokenizer and manifest to a folder, as an export does."""

    def __call__(
        self,
        model: Model,
        options: ExportOptions,
        graph: ir.Model,
        stored: Sequence[QuantizedTensor],
        folder: Path,
    ) -> object:
        """Make the folder one that can be run."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FloatGraph:
    """A target's graph with float weights; none of them is read until it is written.

    Attributes:
        precision: `fp32`, or `fp16` where the target has no float32 kernels.
        weights: What every matrix is stacked from, by the checkpoint's tensor: which are stacked on
            each other depends on how they are stored.
        size_bytes: What the weights take when written.
        write: Writes graph, weights, tokenizer and manifest into an empty folder; once.
    """

    precision: FloatPrecision
    weights: Mapping[str, Weight]
    size_bytes: int
    write: Callable[[Path], None]


def build_float_graph(
    model: Model, target: Target, build: BuildGraph, describe: Describe
) -> FloatGraph:
    """Build the graph that an export for `target` has before its weights are quantized.

    Args:
        model: A trained checkpoint.
        target: Of the bundle that is measured.
        build: The export's own way to build a graph, faults included.
        describe: The export's own way to make a written graph a bundle.
    """
    assert model.checkpoint is not None, "random weights are not measured"
    precision: FloatPrecision = "fp16" if target == "cuda" else "fp32"
    options = ExportOptions(
        source=Source(checkpoint=model.checkpoint.folder),
        quantization=Quantization(precision=precision),
        target=target,
    )
    graph, stored = build(model, options, Silent())

    def write(folder: Path) -> None:
        write_model(graph, folder, Silent())
        describe(model, options, graph, stored, folder)

    return FloatGraph(
        precision=precision,
        weights=_weights(graph.graph),
        size_bytes=stored_bytes(graph.graph),
        write=write,
    )


def _weights(graph: ir.Graph) -> dict[str, Weight]:
    tensors = (value.const_value for value in graph.initializers.values())
    weights = [tensor.recipe.weight for tensor in tensors if isinstance(tensor, PartTensor)]
    parts = [p for w in weights for p in (w.parts if isinstance(w, StackedWeight) else (w,))]
    return {part.sources[0]: part for part in parts if len(part.sources) == 1}
