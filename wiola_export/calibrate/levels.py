"""Find inputs of which one channel is so large that the others are rounded to a few steps.

Axes: K features, k features of a block.
"""

from collections.abc import Mapping

from torch import Tensor

# Steps of a whole range from zero that half of the features should reach: fewer is two bits and a
# sign. Without outliers the demo's inputs reach 13 and more, with one of 300 times their size 0.5.
FEWEST_OF_ALL = 4.0
# The same for the root mean square in each block of 32, where blocks are rounded by themselves: the
# demo's inputs reach 4.4 and more, with an outlier of 100 times their size 1.5 at most.
FEWEST_OF_A_BLOCK = 2.0
LARGEST_CODE = 127


def block_levels(squares: Tensor, block_size: int) -> float:
    """Return the steps that the typical feature reaches in the block where that is fewest.

    Args:
        squares: Mean square, or any multiple of it, of every feature, (K,).
        block_size: Features that share a scale.
    """
    fewest = float(LARGEST_CODE)
    for block in squares.split(block_size):  # type: ignore[no-untyped-call]
        seen = block[block > 0].sqrt()
        if len(seen):
            fewest = min(fewest, LARGEST_CODE * float(seen.median() / seen.max()))
    return fewest


def too_few_in_range(levels: Mapping[str, float], smoothing: float | None) -> str | None:
    """Say where one channel leaves the others few steps of the range of a whole input.

    Args:
        levels: Steps that the median feature reaches, by a matrix that reads the input.
        smoothing: Strength at which the inputs are smoothed already.
    """
    smooth = "smooth them with --smooth 0.75, or " if smoothing is None else ""
    way_out = f"{smooth}take --scheme weight-only --method awq"
    return _told(levels, FEWEST_OF_ALL, "of 255 steps", way_out)


def too_few_in_block(levels: Mapping[str, float]) -> str | None:
    """Say where one channel leaves the others few steps of its block.

    Args:
        levels: Steps as `block_levels` counts them, by a matrix that reads the input.
    """
    way_out = "take --method awq-gptq, or give --max-kl to refuse what is lost"
    return _told(levels, FEWEST_OF_A_BLOCK, f"of {LARGEST_CODE} steps in one block", way_out)


def _told(levels: Mapping[str, float], fewest: float, steps: str, way_out: str) -> str | None:
    few = {name: reached for name, reached in levels.items() if reached < fewest}
    if not few:
        return None
    worst = min(few, key=few.__getitem__)
    return (
        f"single channels dwarf the others in {len(few)} of {len(levels)} inputs: half of what "
        f"{worst.removesuffix('.weight')} reads stays within {few[worst]:.1f} {steps}; {way_out}"
    )
