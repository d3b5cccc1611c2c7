"""Every stored matrix: how it is kept, what that cost, and how much the model minds."""

import dataclasses
from collections.abc import Mapping

from wiola_export.report.size import part_of
from wiola_runtime.manifest import QuantizationSpec, QuantizedTensor


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorFigures:
    """One matrix of the graph.

    Attributes:
        name: Operand in the graph.
        layer: Number of its layer; None outside of layers.
        kind: Its place in a layer, e.g. `attn.o`, or in the model.
        part: Part of the model that it belongs to.
        block_size: Weights that share one scale; 0 where one scale serves a whole row.
        size_bytes: In the file; 0 where the bytes are those of another matrix.
        relative_error: Squared error of the stored weights as a share of the squared weights;
            None where it was not measured.
        sensitivity_nats: What rounding this matrix alone costs in mean KL divergence; None where
            it was not measured.
    """

    name: str
    layer: int | None
    kind: str
    part: str
    shape: tuple[int, ...]
    bits: int
    block_size: int
    size_bytes: int
    relative_error: float | None
    sensitivity_nats: float | None


def list_tensors(
    quantization: QuantizationSpec,
    errors: Mapping[str, float],
    sensitivity: Mapping[str, float],
) -> tuple[TensorFigures, ...]:
    """Join what the manifest says of every matrix with what was measured, in graph order."""
    return tuple(
        _figures(tensor, errors.get(tensor.name), sensitivity.get(tensor.name))
        for tensor in quantization.tensors
    )


def place_of(name: str) -> tuple[int | None, str]:
    """Split a name into the number of the layer and the place in it.

    `model.layers.3.attn.q_proj+k_proj.weight` is `attn.q+k` of layer 3.
    """
    operand, _, role = name.partition(" ")
    words = operand.removesuffix(".weight").replace("_proj", "").split(".")
    numbers = [i for i, word in enumerate(words) if word.isdigit()]
    if not numbers:
        return None, role.strip("()") or words[-1]
    return int(words[numbers[0]]), ".".join(words[numbers[0] + 1 :])


def _figures(
    tensor: QuantizedTensor, error: float | None, sensitivity: float | None
) -> TensorFigures:
    layer, kind = place_of(tensor.name)
    return TensorFigures(
        name=tensor.name,
        layer=layer,
        kind=kind,
        part=part_of(tensor),
        shape=tensor.shape,
        bits=tensor.bits,
        block_size=tensor.block_size,
        size_bytes=tensor.size_bytes,
        relative_error=error,
        sensitivity_nats=sensitivity,
    )
