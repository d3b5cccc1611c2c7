"""With integer activations rows and steps stay their own.

Measured on the demo; errors are root mean squares as shares of the logits' deviation.
"""

import numpy as np
import pytest
from support import calibrated
from support.checkpoint_folder import DEMO
from support.graphs import GraphRunner

from wiola_runtime.manifest import Manifest

pytestmark = pytest.mark.slow

IDS = np.random.default_rng(1).integers(8, 4096, (2, 64))


@pytest.fixture(scope="module", params=["static", "dynamic"])
def bundle(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("rows") / request.param
    return request.param, GraphRunner(
        calibrated.export(DEMO, out, scheme=request.param) / "model.onnx"
    )


def error(found, expected):
    gap = (np.asarray(found, np.float64) - expected) ** 2
    return float(np.sqrt(gap.mean()) / expected.std())


def test_cached_and_full_passes_agree(bundle):
    """On other processors a rounded activation on the edge may fall to either side."""
    _, graph = bundle

    full, _ = graph.all_at_once(IDS[:1])
    stepped, _ = graph.in_chunks(IDS[:1], [1] * 64)

    assert error(stepped, full) < 0.02


def test_a_neighbour_changes_a_row_only_within_tolerance(bundle):
    _, graph = bundle
    other = IDS.copy()
    other[1] = IDS[1, 0]  # one token over and over: other activations, other extremes

    before, after = graph.all_at_once(IDS)[0], graph.all_at_once(other)[0]

    assert error(after[0], before[0]) < 0.01
    assert error(after[1], before[1]) > 0.5


def test_both_targets_compute_the_same_with_static_ranges(tmp_path):
    """Packed or not, with kernels of ONNX Runtime or in its standard operators."""
    folders = [
        calibrated.export(DEMO, tmp_path / target, scheme="static", target=target)
        for target in ("cpu", "portable")
    ]

    cpu, portable = (GraphRunner(folder / "model.onnx") for folder in folders)

    assert error(portable.all_at_once(IDS)[0], cpu.all_at_once(IDS)[0]) < 0.02
    for folder in folders:
        tensors = Manifest.read(folder).quantization.tensors
        assert {tensor.bits for tensor in tensors} == {8}
