"""Weights as a bundle's graph holds them, read back a few rows at a time.

What is read is the file itself, by the layouts that its kernels expect and with none of the code
that wrote it: a weight that was packed wrongly is as wrong here as it is when it is run.

Axes: N output features, K input features, b blocks of a row.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from wiola_export.errors import EvaluationError
from wiola_export.weights import Rows
from wiola_runtime.manifest import QuantizedTensor

Role = Literal["codes", "scales", "zero_points", "values"]
ROLES: Mapping[str, Role] = {
    ".codes": "codes",
    ".scales": "scales",
    ".zero_points": "zero_points",
    ".values": "values",
}
LOOKED_UP = ".rows"  # the same bytes under another name, for a lookup
BYTE_BITS = 8


@dataclasses.dataclass(frozen=True, eq=False)
class StoredMatrix:
    """One matrix (N, K): either `values`, or `codes`, `scales` and perhaps `zero_points`."""

    spec: QuantizedTensor
    parts: Mapping[Role, ir.TensorProtocol]

    def rows(self, start: int, stop: int) -> Rows:
        """Return rows [start, stop) as the kernels multiply with them."""
        if "values" in self.parts:
            return _array(self.parts["values"])[start:stop].astype(np.float32)
        if self.parts["codes"].dtype == ir.DataType.INT8:
            codes = _array(self.parts["codes"])[:, start:stop].T.astype(np.float32)
            codes *= _array(self.parts["scales"])[start:stop, None]
            return codes
        return self._blocks(start, stop)

    def _blocks(self, start: int, stop: int) -> Rows:
        columns, size = self.spec.shape[1], self.spec.block_size
        scales = _array(self.parts["scales"])
        scales = scales[:, start:stop].T if self._by_columns else scales[start:stop]
        scales = scales.astype(np.float32)
        steps = self._integers("codes", start, stop)[:, :columns].astype(np.float32)
        if "zero_points" in self.parts:
            zero_points = self._integers("zero_points", start, stop)[:, : scales.shape[1]]
            steps -= np.repeat(zero_points, size, axis=1)[:, :columns]
        else:
            steps -= np.float32(1 << (self.spec.bits - 1))
        steps *= np.repeat(scales, size, axis=1)[:, :columns]
        return steps

    @property
    def _by_columns(self) -> bool:
        """Whether the parts are (K, N) and (b, N), and not (N, …): K is more than b."""
        rows, columns = self.spec.shape
        heights = [self.parts[role].shape.numpy()[0] for role in ("codes", "scales")]
        return heights == [columns, -(-columns // self.spec.block_size)] != [rows, rows]

    def _integers(self, role: Role, start: int, stop: int) -> NDArray[np.uint8]:
        """Unpack rows of unsigned integers, the lowest bits of a byte first.

        Of (K, N) they are the columns, and elements follow each other without a gap; in bytes
        every row begins with a new one.
        """
        tensor, bits = self.parts[role], self.spec.bits
        if self._by_columns:
            shape = tensor.shape.numpy()
            flat = _unpacked(_bytes(tensor), bits)[: math.prod(shape)]
            return flat.reshape(shape)[:, start:stop].T
        packed = _bytes(tensor).reshape(self.spec.shape[0], -1)[start:stop]
        return _unpacked(packed.reshape(-1), bits).reshape(stop - start, -1)


def _unpacked(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return the integers of so many bits that bytes hold."""
    if bits == BYTE_BITS:
        return packed
    shifts = np.arange(0, BYTE_BITS, bits, dtype=np.uint8)
    return (packed[:, None] >> shifts & np.uint8((1 << bits) - 1)).reshape(-1)


def open_matrices(
    graph_file: Path, specs: tuple[QuantizedTensor, ...]
) -> Mapping[str, StoredMatrix]:
    """Find every matrix of a manifest in its graph, by the manifest's names.

    Raises:
        EvaluationError: The graph holds no tensors of that name.
    """
    found: dict[str, dict[Role, ir.TensorProtocol]] = {}
    for full, value in ir.load(graph_file).graph.initializers.items():
        name = full.removesuffix(LOOKED_UP)
        suffix = next((s for s in ROLES if name.endswith(s)), None)
        if suffix is not None and value.const_value is not None:
            parts = found.setdefault(name.removesuffix(suffix), {})
            parts.setdefault(ROLES[suffix], value.const_value)
    for spec in specs:
        if not {"values", "codes"} & found.get(operand_of(spec), {}).keys():
            raise EvaluationError(
                f"{graph_file} holds no weights named {operand_of(spec)}, which its manifest "
                "lists; export again"
            )
    return {spec.name: StoredMatrix(spec, found[operand_of(spec)]) for spec in specs}


def operand_of(spec: QuantizedTensor) -> str:
    """Return the name of a matrix in the graph; the manifest's adds what it is, in brackets."""
    return spec.name.partition(" (")[0]


@functools.singledispatch
def _bytes(tensor: ir.TensorProtocol) -> NDArray[np.uint8]:
    """Return the bytes of a tensor as they lie in the file."""
    return np.frombuffer(tensor.tobytes(), np.uint8)


@_bytes.register
def _(tensor: ir.ExternalTensor) -> NDArray[np.uint8]:
    assert tensor.length is not None
    return np.memmap(tensor.path, np.uint8, "r", tensor.offset or 0, (tensor.length,))


def _array(tensor: ir.TensorProtocol) -> NDArray[Any]:
    """Return a tensor whose elements are whole bytes, mapped and not read."""
    return _bytes(tensor).view(tensor.dtype.numpy()).reshape(tensor.shape.numpy())
