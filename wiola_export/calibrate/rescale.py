"""Activation-aware scaling: make the weights that matter larger before they are rounded.

Source: Lin et al., "AWQ: Activation-aware Weight Quantization", arXiv 2306.00978, section 3.2.
Axes: N rows, K features of a reader, P features of a producer.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from wiola_export.families.layered import Rescaling
from wiola_export.families.layerwise import LoadedLayer
from wiola_export.quantize.formats import Blocks
from wiola_export.quantize.packing import pad_to_blocks
from wiola_export.quantize.rounding import round_blocks
from wiola_export.weights import Factors

Scales = list[tuple[Rescaling, Tensor]]

EXPONENTS = tuple(float(exponent) for exponent in np.linspace(0, 1, 21))
# A feature hardly ever seen must not be scaled to nothing.
SMALLEST, LARGEST = 1e-2, 1e2


def find_scales(
    rescaling: Rescaling,
    weights: Mapping[str, Tensor],
    moments: Tensor,
    forms: Mapping[str, Blocks],
) -> Tensor:
    """Return the factor of each produced feature's readers, (P,), with the least output error.

    Scales are powers of the features' root mean square; the exponent is searched for. Exponent 0
    leaves everything as it is.

    Args:
        rescaling: Readers and producers.
        weights: Float weights of the layer.
        moments: Mean of x xᵀ of what the readers read, (K, K).
        forms: How those readers will be rounded that will be.
    """
    magnitudes = _produced(rescaling, moments.diagonal()).sqrt()
    best, least = torch.ones_like(magnitudes), float("inf")
    for exponent in EXPONENTS:
        scales = _normalized(magnitudes, exponent)
        at_readers = at_reader(rescaling, scales)
        error = sum(
            output_error(weights[name], at_readers, moments, form) for name, form in forms.items()
        )
        if error < least:
            best, least = scales, float(error)
    return best


def at_reader(rescaling: Rescaling, scales: Tensor) -> Tensor:
    """Repeat the scales of produced features (P,) for the features of the readers, (K,)."""
    runs = scales.reshape(-1, rescaling.run)
    return runs.repeat_interleave(rescaling.repeats, dim=0).reshape(-1)


def rescaled(
    rescalings: Sequence[tuple[Rescaling, Tensor]], weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Apply scales to the weights of a layer; the layer computes the same."""
    changed = dict(weights)
    for rescaling, scales in rescalings:
        for name in rescaling.readers:
            changed[name] = changed[name] * at_reader(rescaling, scales)
        for name in rescaling.producers:
            weight = changed[name]
            changed[name] = weight / scales.reshape(-1, *[1] * (weight.ndim - 1))
    return changed


def note(
    factors: dict[str, Factors], layer: LoadedLayer, rescaling: Rescaling, scales: Tensor
) -> None:
    """Remember, by full name, what the tensors of a rescaling are multiplied by."""
    for name in rescaling.readers:
        full = layer.full_name(name)
        columns = at_reader(rescaling, scales).numpy()
        factors[full] = factors.get(full, Factors()).times(columns=columns)
    for name in rescaling.producers:
        full = layer.full_name(name)
        factors[full] = factors.get(full, Factors()).times(rows=(1 / scales).numpy())


def output_error(weight: Tensor, scales: Tensor, moments: Tensor, form: Blocks) -> float:
    """Return the squared error of the products, per token, if `weight · scales` is rounded."""
    blocks = pad_to_blocks((weight * scales).numpy(), form.block_size)
    codes = round_blocks(blocks, form, search=False)
    found = torch.from_numpy(codes.dequantize().reshape(len(weight), -1)[:, : weight.shape[1]])
    error = found / scales - weight
    return float(((error @ moments) * error).sum())


def _produced(rescaling: Rescaling, at_readers: Tensor) -> Tensor:
    """Average a figure of the readers' features (K,) over those that one producer serves, (P,)."""
    runs = at_readers.reshape(-1, rescaling.repeats, rescaling.run)
    return runs.mean(dim=1).reshape(-1)


def _normalized(magnitudes: Tensor, exponent: float) -> Tensor:
    """Return powers with the middle of their range at 1, and no ratio beyond the limits'.

    Features hardly ever seen count as the smallest that the limits allow, so that they do not
    push the others to one end.
    """
    largest = float(magnitudes.max()) or 1.0
    scales = magnitudes.clamp(min=largest * SMALLEST / LARGEST) ** exponent
    return (scales / torch.sqrt(scales.max() * scales.min())).clamp(SMALLEST, LARGEST)
