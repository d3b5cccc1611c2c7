"""Which weight is stored how."""

import dataclasses
from typing import Literal

from wiola_export.quantize.formats import Blocks, FloatName, Floats, Format

Role = Literal["matrix", "head", "embedding"]

SMALLEST_BLOCK = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """A format, and why it is not the one that was asked for."""

    form: Format
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The formats of one export.

    Attributes:
        matrices: Format of all matrices between embedding and head.
        tables: Format of embedding and head.
        floats: Element type of weights that stay in floating point.
    """

    matrices: Format
    tables: Format
    floats: FloatName

    def decide(self, role: Role, columns: int) -> Decision:
        """Choose the format of a weight with that many input features.

        Rows of an embedding lie beside each other without padding, so its block size must divide
        the row.
        """
        wanted = self.matrices if role == "matrix" else self.tables
        if role == "matrix" or not isinstance(wanted, Blocks):
            return Decision(wanted)
        size = wanted.block_size
        while columns % size and size > SMALLEST_BLOCK:
            size //= 2
        if columns % size:
            note = f"kept: {columns} features are no multiple of {SMALLEST_BLOCK}"
            return Decision(Floats(self.floats), note)
        return Decision(dataclasses.replace(wanted, block_size=size))
