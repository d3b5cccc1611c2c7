"""What a manifest says about the host that it needs, and how its weights came about."""

import dataclasses
import io
import json
import shutil
import tomllib
from pathlib import Path

import pytest
from support import oracles

from wiola_export.bundle import OLDEST_ONNXRUNTIME, bundle_name, chat_spec, quantization_spec
from wiola_export.checkpoint import chat_trial
from wiola_export.options import ExportOptions, Quantization, Source
from wiola_export.source import demo_folder, find_model
from wiola_runtime.manifest import ChatSpec, Manifest, TokenSpec

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
        (
            {"quantization": Quantization(precision="int4", block_size=128)},
            "wiola-demo-int4-block-128",
        ),
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
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (checkpoint / "chat_template.jinja").write_text(template, encoding="utf-8")

    model = find_model(Source(checkpoint=checkpoint))

    assert chat_spec(model) == ChatSpec(template=template, roles={}, turn_end=None)
    assert model.warnings == ()


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages[", "the chat template is not valid (unexpected"),
        ("{{ raise_exception('tools only') }}", "refuses this conversation (tools only)"),
        ("{{ messages[0].content[:1] }}{{ messages[0].content[2:] }}", "would become a control t"),
        ("{{ messages.__class__.__mro__ }}", "refuses this conversation (access to attribute"),
        (ENDLESS, "it takes more than 4 s"),
    ],
)
def test_a_chat_template_that_cannot_be_used_is_left_out_and_said(
    tmp_path, monkeypatch, template, reason
):
    """The documented format of the family does not take its place: it is another one."""
    monkeypatch.setattr(chat_trial, "SECONDS", 4 if template == ENDLESS else 60)
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(demo_folder(), checkpoint)
    (checkpoint / "chat_template.jinja").write_text(template, encoding="utf-8")

    model = find_model(Source(checkpoint=checkpoint))

    (warning,) = model.warnings
    assert warning.startswith("the chat template is left out, so the bundle continues texts only: ")
    assert reason in warning
    assert "\n" not in warning
    assert chat_spec(model) is None


def test_a_trial_that_dies_is_a_doubt(tmp_path):
    """As one does that takes all memory."""
    tokens = TokenSpec(bos_id=None, adds_bos=False, eos_ids=(), pad_id=None)

    found = chat_trial.chat_doubt("{{ messages }}", tmp_path / "absent.json", tokens)

    assert found.startswith("trying it ended with exit code 1 (wiola_runtime.errors.Bundle")


def test_the_trial_says_what_its_own_process_finds(monkeypatch, capsys):
    tokens = TokenSpec(bos_id=None, adds_bos=False, eos_ids=(), pad_id=None)
    for template, told in (("{{ 1 / 0 }}", "division by zero"), ("{{ messages }}", "")):
        given = [template, str(demo_folder() / "tokenizer.json"), dataclasses.asdict(tokens)]
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(given)))

        chat_trial.main()

        assert told in capsys.readouterr().out


def test_the_runtime_accepts_the_oldest_that_runs_any_bundle():
    project = tomllib.loads((ROOT / "runtime/pyproject.toml").read_text(encoding="utf-8"))

    extras = project["project"]["optional-dependencies"]
    assert extras["cpu"] == [f"onnxruntime>={OLDEST_ONNXRUNTIME}"]
    assert extras["cuda"] == [f"onnxruntime-gpu>={OLDEST_ONNXRUNTIME}"]
