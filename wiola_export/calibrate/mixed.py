"""Choose bits for every tensor: measure what each form costs, then spend a budget."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wiola_export.calibrate.sensitivity import Costs, measure_sensitivity
from wiola_export.calibrate.tables import COARSE_BITS
from wiola_export.errors import OptionError
from wiola_export.options import BLOCK_SIZES, Budget, ExportOptions
from wiola_export.progress import Progress
from wiola_export.quantize.formats import Blocks, Floats, Format
from wiola_export.quantize.plan import (
    MATRIX_AXES,
    Choice,
    Plan,
    choose_by_cost,
    choose_by_size,
    stored_bytes,
)
from wiola_export.quantize.policy import SHORT_ROW, Policy, Role
from wiola_export.source import Model

# Windows whose gradients are looked at; each is one sample of the estimate.
SENSITIVITY_WINDOWS = 32
# Costs are those of nearest rounding. GPTQ brings matrices down to about so much of it, and less
# in a coarse table, which is looked up too (docs/decisions/0007-calibration.md).
GPTQ_SHARE = 0.55
GPTQ_TABLE_SHARE = 0.8
# The rest of a limit is left to kernels, which round activations, and to the text being another.
PLANNED_SHARE = 0.85


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """What was planned, and what every form of every tensor costs by itself."""

    plan: Plan
    costs: Costs

    def chosen(self) -> dict[str, float]:
        """Return what each tensor costs by itself in the form that it was given."""
        return {name: self.costs[name].get(form, 0.0) for name, form in self.plan.forms.items()}


def plan_bits(
    model: Model,
    windows: NDArray[np.int64],
    policy: Policy,
    options: ExportOptions,
    folder: Path,
    progress: Progress,
) -> Mixed:
    """Choose the form of every tensor under a budget of bits or of accuracy.

    Raises:
        OptionError: Nothing fits the budget.
    """
    roles: dict[str, Role] = {}

    def forms(role: Role, name: str, shape: tuple[int, ...]) -> Sequence[Format]:
        roles[name] = role
        return candidates(policy, role, shape)

    def left(name: str, form: Format) -> float:
        return _left_by_gptq(roles[name], form) if "gptq" in options.method else 1.0

    costs = measure_sensitivity(model, sample_of(windows), forms, folder, progress)
    shapes = model.config.tensor_shapes()
    choices = {
        name: _choices(
            shapes[name], {form: cost * left(name, form) for form, cost in found.items()}, policy
        )
        for name, found in costs.items()
    }
    return Mixed(plan=_spend(choices, shapes, options.budget), costs=costs)


def cost_of_policy(
    model: Model,
    windows: NDArray[np.int64],
    policy: Policy,
    folder: Path,
    progress: Progress,
) -> dict[str, float]:
    """Return what each tensor costs by itself as it is stored."""

    def stored(role: Role, name: str, shape: tuple[int, ...]) -> Sequence[Format]:
        return [policy.decide(role, shape[1], name).form] if len(shape) == MATRIX_AXES else []

    costs = measure_sensitivity(model, sample_of(windows), stored, folder, progress)
    return {name: sum(forms.values()) for name, forms in costs.items()}


def sample_of(windows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return some windows, evenly spread over all."""
    count = min(len(windows), SENSITIVITY_WINDOWS)
    chosen: NDArray[np.int64] = windows[np.linspace(0, len(windows) - 1, count).astype(int)]
    return chosen


def candidates(policy: Policy, role: Role, shape: tuple[int, ...]) -> Sequence[Blocks]:
    """Return the forms in blocks that a tensor may take: from the policy's bits up to 8.

    Blocks that do not fill a row are left out: they would be padded. Where none does, the finest
    of a matrix are padded. Matrices of short rows stay in floating point.
    """
    if len(shape) != MATRIX_AXES or not isinstance(policy.matrices, Blocks):
        return ()
    if role == "matrix" and shape[1] <= SHORT_ROW:
        return ()
    fewest = policy.lookup_bits if role == "embedding" else 4
    widths = sorted({max(policy.matrices.bits, fewest), 8})
    sizes = [size for size in BLOCK_SIZES if shape[1] % size == 0]
    if role == "matrix" and not sizes:
        sizes = [min(BLOCK_SIZES)]
    return [
        dataclasses.replace(policy.matrices, bits=bits, block_size=size)
        for bits in widths
        for size in sizes
    ]


def _left_by_gptq(role: Role, form: Format) -> float:
    """Return the share of nearest rounding's cost that is left where GPTQ rounds."""
    if role == "matrix":
        return GPTQ_SHARE
    return GPTQ_TABLE_SHARE if isinstance(form, Blocks) and form.bits <= COARSE_BITS else 1.0


def _choices(
    shape: tuple[int, ...], costs: Mapping[Format, float], policy: Policy
) -> Sequence[Choice]:
    """Return the forms of a tensor with what each costs; floats cost nothing."""
    floats = Floats(policy.floats)
    rounded = [
        Choice(form=form, kl_nats=cost, size_bytes=stored_bytes(shape, form))
        for form, cost in costs.items()
    ]
    return [*rounded, Choice(form=floats, kl_nats=0.0, size_bytes=stored_bytes(shape, floats))]


def _spend(
    choices: Mapping[str, Sequence[Choice]],
    shapes: Mapping[str, tuple[int, ...]],
    budget: Budget,
) -> Plan:
    weights = sum(math.prod(shapes[name]) for name in choices)
    if budget.bits_per_weight is not None:
        plan = choose_by_size(choices, budget.bits_per_weight * weights / 8)
        least = sum(min(c.size_bytes for c in tensor) for tensor in choices.values())
        if plan is None:
            raise OptionError(
                f"--bits-per-weight is {budget.bits_per_weight:g}, but scales and zero points "
                f"included this model needs {math.ceil(least * 800 / weights) / 100:g} in this "
                "precision and target; raise it"
            )
        return plan
    plan = choose_by_cost(choices, _allowed(budget) * PLANNED_SHARE)
    assert plan is not None, "keeping floats costs nothing"
    return plan


def _allowed(budget: Budget) -> float:
    """Return the divergence to plan for: on the model's own text, ln of the ratio is one."""
    limits = [math.inf if budget.max_kl is None else budget.max_kl]
    if budget.max_ppl_ratio is not None:
        limits.append(math.log(budget.max_ppl_ratio))
    return min(limits)
