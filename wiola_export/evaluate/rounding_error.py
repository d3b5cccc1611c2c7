"""How far the stored weights of each matrix are from the float ones."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from wiola_export.errors import EvaluationError
from wiola_export.evaluate.stored_weights import StoredMatrix, open_matrices, operand_of
from wiola_export.weights import Weight
from wiola_runtime.manifest import Manifest

CHUNK_WEIGHTS = 1 << 20


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
    for spec in specs:
        weight = weights.get(operand_of(spec))
        if weight is None or weight.shape != spec.shape:
            found = "none" if weight is None else f"one of shape {weight.shape}"
            raise EvaluationError(
                f"the float graph has {found} for {spec.name} of shape {spec.shape}; "
                "give the checkpoint that the bundle was made from"
            )
    return {
        spec.name: relative_error(stored[spec.name], weights[operand_of(spec)]) for spec in specs
    }


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
