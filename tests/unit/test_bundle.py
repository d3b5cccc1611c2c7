"""What a manifest says about the host that it needs."""

import tomllib
from pathlib import Path

import pytest
from support import oracles

from wiola_export.bundle import OLDEST_ONNXRUNTIME
from wiola_export.options import Quantization
from wiola_runtime.manifest import Manifest

INT8, INT4 = Quantization(precision="int8"), Quantization(precision="int4")
DYNAMIC = Quantization(precision="int8", scheme="dynamic")
FP32, FP16 = Quantization(precision="fp32"), Quantization(precision="fp16")

ROOT = Path(__file__).parents[2]
OLDEST = [
    (FP32, "cpu", "1.20.1"),
    (FP16, "cuda", "1.20.1"),
    (INT8, "portable", "1.20.1"),
    (INT4, "portable", "1.20.1"),
    (INT8, "cpu", "1.23.2"),
    (DYNAMIC, "cpu", "1.23.2"),
    (INT4, "cuda", "1.23.2"),
]


@pytest.mark.parametrize(("quantization", "target", "oldest"), OLDEST)
def test_the_oldest_onnxruntime_is_that_of_the_kernels(quantization, target, oldest, tmp_path):
    checkpoint = oracles.write_checkpoint(oracles.load("untied"), tmp_path / "checkpoint")
    folder = oracles.write_bundle(checkpoint, tmp_path / "bundle", target, quantization)

    assert Manifest.read(folder).graph.minimum_onnxruntime == oldest


def test_the_runtime_accepts_the_oldest_that_runs_any_bundle():
    project = tomllib.loads((ROOT / "runtime/pyproject.toml").read_text(encoding="utf-8"))

    assert project["project"]["optional-dependencies"] == {
        "cpu": [f"onnxruntime>={OLDEST_ONNXRUNTIME}"],
        "cuda": [f"onnxruntime-gpu>={OLDEST_ONNXRUNTIME}"],
    }
