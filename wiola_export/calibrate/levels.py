"""Find inputs of which one channel is so large that the others are rounded away.

Axes: N output features, K features, k features of a block.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from wiola_export.options import Method

# Steps of a whole range from zero that half of the features should reach: fewer is two bits and a
# sign. Without outliers the demo's inputs reach 13 and more, with one of 300 times their size 0.5.
FEWEST_LEVELS = 4.0
# Share of a product's energy that rounding its input in blocks may cost. The demo loses up to 2e-4,
# with a channel 100 times as large as the others, and of no more weight, 1e-2.
LARGEST_LOSS = 4e-3
LARGEST_CODE = 127


def lost_in_blocks(squares: Tensor, weights: Sequence[Tensor], block_size: int) -> float:
    """Return the share of the products' energy that rounding their input to 8 bits costs.

    A block's step follows its largest feature, and the error of every feature is that of a step.

    Args:
        squares: Mean square, or any multiple of it, of every feature, (K,).
        weights: What the input is multiplied by, (N, K) each.
        block_size: Features that share a scale.
    """
    energy = torch.stack([weight.square().sum(0) for weight in weights]).sum(0)
    kept = float((squares * energy).sum())
    blocks = zip(squares.split(block_size), energy.split(block_size), strict=True)  # type: ignore[no-untyped-call]
    lost = sum(float(x.max()) / LARGEST_CODE**2 / 12 * float(e.sum()) for x, e in blocks)
    return lost / kept if kept else 0.0


def too_few_in_range(levels: Mapping[str, float], smoothing: float | None) -> str | None:
    """Say where one channel leaves the others few steps of the range of a whole input.

    Args:
        levels: Steps that the median feature reaches, by a matrix that reads the input.
        smoothing: Strength at which the inputs are smoothed already.
    """
    few = {name: steps for name, steps in levels.items() if steps < FEWEST_LEVELS}
    if not few:
        return None
    worst = min(few, key=few.__getitem__)
    smooth = "smooth them with --smooth 0.75, or " if smoothing is None else ""
    return (
        f"single channels dwarf the others in {len(few)} of {len(levels)} inputs: half of what "
        f"{worst.removesuffix('.weight')} reads stays within {few[worst]:.1f} of 255 steps; "
        f"{smooth}take --scheme weight-only --method awq"
    )


def lost_too_much(losses: Mapping[str, float], method: Method) -> str | None:
    """Say where one channel of a block has the others rounded away, and what may help.

    Args:
        losses: Share of the energy that is lost, by a matrix that reads the input.
        method: How the weights are rounded.
    """
    worse = {name: lost for name, lost in losses.items() if lost > LARGEST_LOSS}
    if not worse:
        return None
    worst = max(worse, key=worse.__getitem__)
    scaled = "awq" in method
    way_out = "keep them float in a --plan" if scaled else "take --method awq-gptq"
    return (
        f"single channels dwarf the others in {len(worse)} of {len(losses)} inputs: of what "
        f"{worst.removesuffix('.weight')} makes of its input, 8-bit activations lose "
        f"{worse[worst]:.1%}; {way_out}, or give --max-kl to refuse what is lost"
    )
