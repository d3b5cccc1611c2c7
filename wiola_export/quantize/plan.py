"""Mixed precision: a plan says how each tensor is stored, and is chosen by cost and size."""

import dataclasses
import difflib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

from wiola_export.errors import OptionError
from wiola_export.options import BLOCK_SIZES
from wiola_export.quantize.formats import FLOAT_BITS, Blocks, FloatName, Floats, Format
from wiola_export.quantize.recipes import FLOAT_TYPES, Part, block_parts
from wiola_runtime.manifest import QuantizedTensor

PLAN_VERSION = 1
FILE_NAME = "plan.json"
MATRIX_AXES = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to store a tensor.

    Attributes:
        kl_nats: What it costs: mean divergence per token if this tensor alone is stored so.
        size_bytes: What it takes.
    """

    form: Format
    kl_nats: float
    size_bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How tensors are stored, by name, and what that is expected to cost.

    Attributes:
        kl_nats: Sum of the costs of all tensors; None where it was not estimated.
    """

    forms: Mapping[str, Format]
    kl_nats: float | None = None

    def to_json(self) -> str:
        """Write the plan: a version, and one line of bits and block a tensor."""
        tensors = {name: _written(form) for name, form in sorted(self.forms.items())}
        lines = [
            f"    {json.dumps(n)}: {json.dumps(t, sort_keys=True)}" for n, t in tensors.items()
        ]
        body = ",\n".join(lines)
        return f'{{\n  "plan_version": {PLAN_VERSION},\n  "tensors": {{\n{body}\n  }}\n}}\n'


def plan_of(tensors: Iterable[QuantizedTensor]) -> Plan:
    """Return the plan that stores every tensor of a bundle as it is stored."""
    forms: dict[str, Format] = {}
    for tensor in tensors:
        form: Format = Floats("float16" if tensor.bits == FLOAT_BITS["float16"] else "float32")
        if tensor.bits in (4, 8):
            bits = cast("Literal[4, 8]", tensor.bits)
            form = Blocks(bits=bits, block_size=tensor.block_size, symmetric=tensor.symmetric)
        forms |= dict.fromkeys(tensor.sources, form)
    return Plan(forms=forms)


def stored_bytes(shape: tuple[int, ...], form: Format) -> int:
    """Return the bytes of a matrix (N, K) in the layout of the block kernels, or as floats."""
    if isinstance(form, Floats):
        return Part(FLOAT_TYPES[form.dtype], shape).size_bytes
    assert isinstance(form, Blocks)
    return sum(part.size_bytes for part in block_parts(shape, form, "kernel").values())


def choose_by_size(choices: Mapping[str, Sequence[Choice]], size_bytes: float) -> Plan | None:
    """Return the plan of least cost that takes at most so much; None if nothing is so small.

    From the smallest form of every tensor on, the step that saves most for its bytes comes first;
    one that no longer fits is passed over.
    """
    search = _Search(choices)
    if search.size_bytes > size_bytes:
        return None
    for step in search.steps():
        if search.size_bytes + search.growth(step) <= size_bytes:
            search.take(step)
    return search.plan()


def choose_by_cost(choices: Mapping[str, Sequence[Choice]], kl_nats: float) -> Plan | None:
    """Return the smallest plan found that costs at most so much; None if nothing is so good."""
    search = _Search(choices)
    for step in search.steps():
        if search.kl_nats <= kl_nats:
            break
        search.take(step)
    return search.plan() if search.kl_nats <= kl_nats else None


_Step = tuple[str, int]  # tensor, and the rung of its ladder that is reached


class _Search:
    """The state of a greedy search over ladders of ever larger and better forms."""

    def __init__(self, choices: Mapping[str, Sequence[Choice]]) -> None:
        self._ladders = {name: _hull(sequence) for name, sequence in choices.items()}
        self._rungs = dict.fromkeys(self._ladders, 0)
        self.kl_nats = sum(ladder[0].kl_nats for ladder in self._ladders.values())
        self.size_bytes = sum(ladder[0].size_bytes for ladder in self._ladders.values())

    def steps(self) -> list[_Step]:
        """Return all steps, those that save most for their bytes first."""
        found = [
            (name, rung) for name, ladder in self._ladders.items() for rung in range(1, len(ladder))
        ]
        return sorted(found, key=lambda step: (-self._saved_per_byte(step), step))

    def growth(self, step: _Step) -> int:
        """Return how many bytes the plan would grow by; without end if a rung would be skipped."""
        name, rung = step
        ladder = self._ladders[name]
        if rung != self._rungs[name] + 1:
            return sys.maxsize
        return ladder[rung].size_bytes - ladder[rung - 1].size_bytes

    def take(self, step: _Step) -> None:
        """Store a tensor in its next form."""
        name, rung = step
        old, new = self._ladders[name][self._rungs[name]], self._ladders[name][rung]
        self.kl_nats += new.kl_nats - old.kl_nats
        self.size_bytes += new.size_bytes - old.size_bytes
        self._rungs[name] = rung

    def plan(self) -> Plan:
        """Return what has been chosen."""
        chosen = {name: ladder[self._rungs[name]] for name, ladder in self._ladders.items()}
        return Plan(
            forms={name: choice.form for name, choice in chosen.items()},
            kl_nats=sum(choice.kl_nats for choice in chosen.values()),
        )

    def _saved_per_byte(self, step: _Step) -> float:
        name, rung = step
        old, new = self._ladders[name][rung - 1], self._ladders[name][rung]
        return (old.kl_nats - new.kl_nats) / (new.size_bytes - old.size_bytes)


def _hull(choices: Sequence[Choice]) -> list[Choice]:
    """Keep the forms on the lower convex hull of cost over size, by size."""
    hull: list[Choice] = []
    for choice in sorted(choices, key=lambda c: (c.size_bytes, c.kl_nats)):
        if hull and choice.kl_nats >= hull[-1].kl_nats:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-2], choice):
            hull.pop()
        hull.append(choice)
    return hull


def _slope(one: Choice, other: Choice) -> float:
    return (other.kl_nats - one.kl_nats) / (other.size_bytes - one.size_bytes)


def read_plan(path: Path, shapes: Mapping[str, tuple[int, ...]], floats: FloatName) -> Plan:
    """Read a plan and check it against the tensors of a model.

    Raises:
        OptionError: The file is absent or no plan, or names what the model or a format lacks.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise OptionError(
            f"--plan {path} not found; an export writes one as {FILE_NAME}"
        ) from error
    except (ValueError, OSError, RecursionError) as error:
        raise OptionError(f"--plan {path} is not readable JSON ({error})") from error
    if not isinstance(raw, dict) or raw.get("plan_version") != PLAN_VERSION:
        found = raw.get("plan_version") if isinstance(raw, dict) else None
        raise OptionError(f"--plan {path} has plan_version {found}; expected {PLAN_VERSION}")
    tensors = raw.get("tensors")
    if not isinstance(tensors, dict):
        raise OptionError(f"--plan {path} has no tensors; expected an object of tensor names")
    for name in tensors:
        if len(shapes.get(name, ())) != MATRIX_AXES:
            close = difflib.get_close_matches(name, shapes, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise OptionError(f"--plan {path}: the model has no matrix {name}{hint}")
    return Plan(
        forms={name: _read(raw, floats, f"--plan {path}: {name}") for name, raw in tensors.items()}
    )


def _written(form: Format) -> dict[str, object]:
    if isinstance(form, Floats):
        return {"bits": FLOAT_BITS[form.dtype]}
    assert isinstance(form, Blocks)
    return {"bits": form.bits, "block_size": form.block_size, "symmetric": form.symmetric}


def _read(raw: object, floats: FloatName, where: str) -> Format:
    """Read how one tensor is stored; floats become those of the target."""
    if not isinstance(raw, dict) or raw.get("bits") not in (4, 8, *FLOAT_BITS.values()):
        raise OptionError(f"{where} is {json.dumps(raw)}; expected bits 4, 8, 16 or 32")
    unknown = sorted(raw.keys() - {"bits", "block_size", "symmetric"})
    if unknown:
        raise OptionError(f"{where} has {', '.join(unknown)}; expected bits, block_size, symmetric")
    if raw["bits"] in FLOAT_BITS.values():
        return Floats(floats)
    size, symmetric = raw.get("block_size"), raw.get("symmetric", False)
    if size not in BLOCK_SIZES or not isinstance(symmetric, bool):
        sizes = ", ".join(map(str, BLOCK_SIZES))
        raise OptionError(
            f"{where} is {json.dumps(raw)}; expected block_size {sizes} and symmetric true or false"
        )
    return Blocks(bits=raw["bits"], block_size=size, symmetric=symmetric, scales=floats)
