"""From a stream of activations to the range in which they are rounded.

The histograms and what is made of them are those of ONNX Runtime's own calibrators, fed array by
array: memory does not grow with the number of tokens.
"""

import contextlib
import io
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from onnxruntime.quantization.calibrate import HistogramCollector

from wiola_export.quantize.formats import ActivationRange

# Bins between −bound and +bound.
BINS = 1024
# Levels that the entropy calibrator rounds to when it compares distributions.
ENTROPY_LEVELS = 128
# Share of the activations, in percent, that the percentile calibrator keeps in the range.
PERCENTILE = 99.999


class HistogramObserver:
    """Finds the range of a stream of activations whose ends are known.

    Args:
        method: `percentile` cuts the rarest off; `entropy` keeps the distribution's shape.
        low: Smallest activation to come.
        high: Largest.
    """

    def __init__(self, method: Literal["percentile", "entropy"], low: float, high: float) -> None:
        self._collector = HistogramCollector(
            method=method,
            symmetric=False,
            num_bins=BINS,
            num_quantized_bins=ENTROPY_LEVELS,
            percentile=PERCENTILE,
            scenario="same",
        )
        # The first array sets the width of the bins, and their number grows with later ones.
        self.add(np.array([low, high], np.float32))

    def add(self, activations: NDArray[np.float32]) -> None:
        """Count activations of any shape."""
        with _silently():
            self._collector.collect({"x": activations})

    def range(self) -> ActivationRange:
        """Return the range that the method chooses."""
        with _silently():
            low, high, *_ = self._collector.compute_collection_result()["x"]
        return ActivationRange.spanning(float(low), float(high))


def _silently() -> contextlib.AbstractContextManager[io.StringIO]:
    """Keep what the collector prints out of the output of the command."""
    return contextlib.redirect_stdout(io.StringIO())
