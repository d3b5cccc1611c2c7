"""Which weight is stored how."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from wiola_export.options import FINEST_BLOCK_SIZE
from wiola_export.quantize.formats import Blocks, FloatName, Floats, Format
from wiola_export.quantize.rounded import NEAREST, Rounding

Role = Literal["matrix", "head", "embedding"]


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
    """

    matrices: Format
    tables: Format
    floats: FloatName
    planned: Mapping[str, Format] = dataclasses.field(default_factory=dict)
    rounding: Rounding = NEAREST

    def decide(self, role: Role, columns: int, name: str) -> Decision:
        """Choose the format of a weight with that many input features.

        Rows of an embedding lie beside each other without padding, so its block size must divide
        the row.

        Args:
            role: What the weight does in the graph.
            columns: Its input features.
            name: The tensor of the checkpoint that it is; of a packed one, any of them.
        """
        wanted = self.planned.get(name, self.matrices if role == "matrix" else self.tables)
        if role == "matrix" or not isinstance(wanted, Blocks):
            note = "kept: the plan says so" if isinstance(self.planned.get(name), Floats) else ""
            return Decision(wanted, note, self.rounding)
        size = wanted.block_size
        while columns % size and size > FINEST_BLOCK_SIZE:
            size //= 2
        if columns % size:
            note = f"kept: {columns} features are no multiple of {FINEST_BLOCK_SIZE}"
            return Decision(Floats(self.floats), note)
        return Decision(dataclasses.replace(wanted, block_size=size), rounding=self.rounding)
