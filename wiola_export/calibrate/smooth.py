"""SmoothQuant: move the spread of activations into the weights before both are rounded.

Source: Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
Language Models", arXiv 2211.10438, equation 4.
Axes: K features of a reader, P features of a producer.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from wiola_export.families.layered import Rescaling


def smoothing_scales(
    rescaling: Rescaling, weights: Mapping[str, Tensor], largest: Tensor, strength: float
) -> Tensor:
    """Return what the readers' columns are multiplied by, for each produced feature, (P,).

    With α the strength, s = max|x|^α / max|w|^(1 − α): at 0 all columns of the weights reach
    equally far, at 1 all activations. Features that are never active, or never read, stay.

    Args:
        rescaling: Readers and producers.
        weights: Float weights of the layer.
        largest: max|x| of the features that the readers read, (K,).
        strength: 0 to 1.
    """
    columns = torch.stack([weights[name].abs().amax(dim=0) for name in rescaling.readers])
    active = _produced(rescaling, largest)
    read = _produced(rescaling, columns.amax(dim=0))
    scales = active**strength / read ** (1 - strength)
    return torch.where((active > 0) & (read > 0), scales, 1.0)


def _produced(rescaling: Rescaling, at_readers: Tensor) -> Tensor:
    """Take the largest of the readers' figures (K,) that one producer serves, (P,)."""
    runs = at_readers.reshape(-1, rescaling.repeats, rescaling.run)
    return runs.amax(dim=1).reshape(-1)
