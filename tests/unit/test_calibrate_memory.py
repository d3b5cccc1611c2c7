"""Calibration keeps sums of what it has seen: memory does not grow with the windows."""

import subprocess
import sys
from pathlib import Path

import pytest
from support import oracles

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
FEW_WINDOWS, MANY_WINDOWS, CONTEXT = 16, 400, 40
IN_MEMORY_BYTES = 1 << 20
# Measured: 11 MiB; with all in memory, 77 MiB.
ALLOWED_GROWTH_BYTES = 24 << 20
SCRIPT = """
import resource, sys, tempfile
from pathlib import Path
import numpy as np
from wiola_export.calibrate import hidden, layer
from wiola_export.calibrate.calibration import calibrate
from wiola_export.options import Quantization, Source
from wiola_export.prepare import make_policy
from wiola_export.progress import Silent
from wiola_export.source import find_model

def peak_bytes(windows):
    with tempfile.TemporaryDirectory() as folder:
        calibrate(model, windows, "awq-gptq", policy, Path(folder), Silent())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

checkpoint, few, many, context, limit = sys.argv[1], *map(int, sys.argv[2:])
for kind in (hidden.TensorGroups, hidden.HiddenStates):
    kind.__init__.__defaults__ = (limit,)
layer.STAGE_BYTES = limit
model = find_model(Source(checkpoint=Path(checkpoint)))
policy = make_policy(Quantization(precision="int4"), "cpu")
windows = np.random.default_rng(0).integers(8, 320, (many, context))
small = peak_bytes(windows[:few])
print(peak_bytes(windows) - small)
"""


def grown_bytes(checkpoint, in_memory_bytes):
    """Return what the peak grows by, from few windows to many."""
    numbers = map(str, (FEW_WINDOWS, MANY_WINDOWS, CONTEXT, in_memory_bytes))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, checkpoint, *numbers],
        check=True, capture_output=True, text=True, cwd=TESTS,
    )  # fmt: skip
    return int(done.stdout)


def test_memory_does_not_grow_with_the_windows(tmp_path):
    checkpoint = oracles.write_checkpoint(oracles.load("untied"), tmp_path / "checkpoint")

    assert grown_bytes(checkpoint, IN_MEMORY_BYTES) < ALLOWED_GROWTH_BYTES
