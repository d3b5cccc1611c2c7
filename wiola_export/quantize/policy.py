"""Which weight is stored how."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from wiola_export.options import FINEST_BLOCK_SIZE
from wiola_export.quantize.formats import Blocks, FloatName, Floats, Format
from wiola_export.quantize.rounded import NEAREST, Rounding

Role = Literal["matrix", "head", "embedding"]

# Matrices with so few features have some hundred weights; kernels would fill up their blocks.
SHORT_ROW = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """A format, and why it is not the one that was asked for."""

    form: Format
    note: str = ""
    rounding: Rounding = NEAREST


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The formats of one export.

    Attributes:
        matrices: Format of all matrices between embedding and head.
        tables: Format of embedding and head.
        floats: Element type of weights that stay in floating point.
        planned: Formats of single tensors, by name; they come before the others.
        rounding: How weights are rounded in blocks.
        lookup_bits: The fewest bits of a table that the target can look rows up in.
    """

    matrices: Format
    tables: Format
    floats: FloatName
    planned: Mapping[str, Format] = dataclasses.field(default_factory=dict)
    rounding: Rounding = NEAREST
    lookup_bits: Literal[4, 8] = 4

    def decide(self, role: Role, columns: int, name: str) -> Decision:
        """Choose the format of a weight with that many input features.

        Rows of an embedding lie beside each other without padding, so its block size must divide
        the row.

        Args:
            role: What the weight does in the graph.
            columns: Its input features.
            name: The tensor of the checkpoint that it is; of a packed one, any of them.
        """
        planned = self.planned.get(name)
        wanted = planned or (self.matrices if role == "matrix" else self.tables)
        if isinstance(wanted, Floats):
            return Decision(wanted, "kept: the plan says so" if planned else "")
        if role == "matrix" or not isinstance(wanted, Blocks):
            short = role == "matrix" and columns <= SHORT_ROW and not isinstance(planned, Blocks)
            return self._kept_short(columns) if short else Decision(wanted, "", self.rounding)
        size = wanted.block_size
        while columns % size and size > FINEST_BLOCK_SIZE:
            size //= 2
        if columns % size:
            note = f"kept: {columns} features are no multiple of {FINEST_BLOCK_SIZE}"
            return Decision(Floats(self.floats), note)
        form, note = dataclasses.replace(wanted, block_size=size), ""
        if role == "embedding" and form.bits < self.lookup_bits:
            form = dataclasses.replace(form, bits=self.lookup_bits)
            note = f"{form.bits} bits: the target looks nothing up in fewer"
        return Decision(form, note, self.rounding)

    def _kept_short(self, columns: int) -> Decision:
        note = f"kept: rows of {columns} features are too short to pay"
        return Decision(Floats(self.floats), note)
