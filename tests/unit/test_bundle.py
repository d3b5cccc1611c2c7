"""What a manifest says about the host that it needs, and how its weights came about."""

import shutil
import tomllib
from pathlib import Path

import pytest
from support import oracles

from wiola_export.bundle import OLDEST_ONNXRUNTIME, bundle_name, chat_spec, quantization_spec
from wiola_export.options import ExportOptions, Quantization, Source
from wiola_export.source import demo_folder, find_model
from wiola_runtime.manifest import ChatSpec, Manifest

INT8, INT4 = Quantization(precision="int8"), Quantization(precision="int4")
DYNAMIC = Quantization(precision="int8", scheme="dynamic")
STATIC = Quantization(precision="int8", scheme="static")
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


@pytest.mark.parametrize(
    ("choices", "name"),
    [
        ({"quantization": INT8}, "wiola-demo-int8"),
        ({"quantization": DYNAMIC}, "wiola-demo-int8-dynamic"),
        ({"quantization": INT4, "int8_cache": True}, "wiola-demo-int4-int8-cache"),
        ({"quantization": STATIC, "target": "portable"}, "wiola-demo-int8-static-portable"),
    ],
)
def test_bundles_that_differ_have_names_that_differ(choices, name):
    source = Source(variant="demo")

    assert bundle_name(find_model(source), ExportOptions(source=source, **choices)) == name


@pytest.mark.parametrize(
    ("quantization", "method", "smoothing", "calibrator"),
    [
        (INT4, "gptq", None, None),
        (Quantization(precision="int8", method="hqq"), "hqq", None, None),
        (STATIC, None, 0.75, "percentile"),
        (Quantization(precision="int8", scheme="dynamic", smooth="none"), None, None, None),
        (FP32, None, None, None),
    ],
)
def test_a_manifest_says_how_weights_and_activations_were_rounded(
    quantization, method, smoothing, calibrator
):
    options = ExportOptions(source=Source(variant="demo"), quantization=quantization)

    found = quantization_spec(options, ())

    assert (found.method, found.smoothing, found.calibrator) == (method, smoothing, calibrator)


def test_a_documented_chat_format_is_that_of_the_family_whose_tokens_are_there():
    found = chat_spec(find_model(Source(variant="demo")))

    assert found == ChatSpec(
        template=None,
        roles={"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"},
        turn_end="<|end|>",
    )
    assert chat_spec(find_model(Source(variant="demo-gsa"))) is None


def test_a_chat_template_of_the_checkpoint_comes_first(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(demo_folder(), checkpoint)
    (checkpoint / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")

    found = chat_spec(find_model(Source(checkpoint=checkpoint)))

    assert found == ChatSpec(template="{{ messages }}", roles={}, turn_end=None)


def test_the_runtime_accepts_the_oldest_that_runs_any_bundle():
    project = tomllib.loads((ROOT / "runtime/pyproject.toml").read_text(encoding="utf-8"))

    assert project["project"]["optional-dependencies"] == {
        "cpu": [f"onnxruntime>={OLDEST_ONNXRUNTIME}"],
        "cuda": [f"onnxruntime-gpu>={OLDEST_ONNXRUNTIME}"],
        "chat": ["jinja2>=3.1"],
    }
