"""How far the stored weights of each matrix are from the float ones."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from wiola_export.errors import EvaluationError
from wiola_export.evaluate.stored_weights import StoredMatrix, open_matrices
from wiola_export.weights import StackedWeight, Weight
from wiola_runtime.manifest import Manifest, QuantizedTensor

CHUNK_WEIGHTS = 1 << 20
# Far beyond what rounding to so many bits can do to a matrix, and far below what scaling its rows
# or columns does. Where features are alike, GPTQ has moved 4-bit weights by 0.05.
LARGEST_ERRORS = {4: 0.15, 8: 0.005, 16: 1e-5, 32: 1e-10}


def measure_errors(
    bundle: Path, manifest: Manifest, weights: Mapping[str, Weight]
) -> dict[str, float]:
    """Compare every stored matrix with its float weight, about a million weights at a time.

    Args:
        bundle: The folder.
        manifest: Lists the matrices.
        weights: The float weight that stands for each tensor of the checkpoint.

    Returns:
        The squared error as a share of the squared weights, by the manifest's names.

    Raises:
        EvaluationError: Graph, manifest and weights are not of one model.
    """
    specs = manifest.quantization.tensors
    stored = open_matrices(bundle / manifest.graph.file, specs)
    floats = {spec.name: _float_weight(spec, weights) for spec in specs}
    return {name: relative_error(stored[name], weight) for name, weight in floats.items()}


def _float_weight(spec: QuantizedTensor, weights: Mapping[str, Weight]) -> Weight:
    parts = tuple(weights[source] for source in spec.sources if source in weights)
    weight = StackedWeight(parts) if parts else None
    if weight is None or weight.shape != spec.shape:
        found = "none" if weight is None else f"one of shape {weight.shape}"
        raise EvaluationError(
            f"the float graph has {found} for {spec.name} of shape {spec.shape}; "
            "give the checkpoint that the bundle was made from"
        )
    return weight


def is_rescaled(manifest: Manifest, errors: Mapping[str, float]) -> bool:
    """Tell whether a matrix is farther from its float weight than rounding can bring it.

    Calibration may scale rows and columns so that the model computes the same. What is stored is
    then no rounding of the checkpoint's weights, and the distance from those says nothing.
    """
    bits = {spec.name: spec.bits for spec in manifest.quantization.tensors}
    return any(error > LARGEST_ERRORS.get(bits[name], 1.0) for name, error in errors.items())


def relative_error(stored: StoredMatrix, weight: Weight) -> float:
    """Return the squared error of stored weights as a share of the squared float weights."""
    rows, columns = weight.shape
    step = max(CHUNK_WEIGHTS // columns, 1)
    error = total = 0.0
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        expected = weight.rows(start, stop)
        difference = stored.rows(start, stop) - expected
        error += float(np.square(difference).sum(dtype=np.float64))
        total += float(np.square(expected).sum(dtype=np.float64))
    return error / total if total else error
