"""How far the stored weights of each matrix are from the float ones."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from wiola_export.errors import EvaluationError
from wiola_export.evaluate.stored_weights import StoredMatrix, open_matrices
from wiola_export.weights import StackedWeight, Weight
from wiola_runtime.manifest import Manifest, QuantizedTensor

CHUNK_WEIGHTS = 1 << 20
# Far beyond what rounding to so many bits can do to a matrix, and far below what scaling its rows
# or columns does.
LARGEST_ERRORS = {4: 0.05, 8: 0.005, 16: 1e-5, 32: 1e-10}


def measure_errors(
    bundle: Path, manifest: Manifest, weights: Mapping[str, Weight]
) -> dict[str, float]:
    """Compare every stored matrix with its float weight, about a million weights at a time.

    Args:
        bundle: The folder.
        manifest: Lists the matrices.
        weights: The float weight of each, by its name in the graph.

    Returns:
        The squared error as a share of the squared weights, by the manifest's names.

    Raises:
        EvaluationError: Graph, manifest and weights are not of one model.
    """
    specs = manifest.quantization.tensors
    stored = open_matrices(bundle / manifest.graph.file, specs)
    parts = _parts(weights.values())
    return {
        spec.name: relative_error(stored[spec.name], _expected(spec, parts)) for spec in specs
    }


def _parts(weights: Iterable[Weight]) -> dict[str, Weight]:
    """Return the float weights by the tensor that they come from: a plan may pack others."""
    single = (
        part
        for weight in weights
        for part in (weight.parts if isinstance(weight, StackedWeight) else (weight,))
    )
    return {part.sources[0]: part for part in single}


def _expected(spec: QuantizedTensor, parts: Mapping[str, Weight]) -> Weight:
    """Return the float weight that a matrix stands for."""
    found = [parts[source] for source in spec.sources if source in parts]
    weight = StackedWeight(tuple(found)) if len(found) != 1 else found[0]
    if len(found) != len(spec.sources) or weight.shape != spec.shape:
        has = f"one of shape {weight.shape}" if found else "none"
        raise EvaluationError(
            f"the float graph has {has} for {spec.name} of shape {spec.shape}; "
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
