"""A report states what was measured, and nothing where nothing can be stated."""

import dataclasses
import json
import re

import pytest
from support.manifests import (
    ACCURACY,
    AUSTEN,
    DROP,
    MACHINE,
    MINE,
    SPEED,
    manifest,
    matrix,
    random_manifest,
)

from wiola_calibration import CalibrationFileRecord, CalibrationRecord
from wiola_export.errors import EvaluationError
from wiola_export.report import Accuracy, make_report, model_card, to_json, to_markdown
from wiola_export.report.document import Table

NO_ACCURACY = "Random weights: no accuracy can be stated"
WARNING = "A packaged text may be unlike what this model was trained on"


def report_on(spec=None, *, accuracy=ACCURACY, speed=SPEED):
    return make_report(spec or manifest(), accuracy=accuracy, speed=speed, machine=MACHINE)


def test_the_keys_that_others_read_are_there():
    figures = json.loads(to_json(report_on()))

    assert figures["reference"]["ppl"] == DROP.reference_ppl
    assert figures["candidate"]["ppl"] == DROP.candidate_ppl
    assert figures["ppl_ratio"] == DROP.candidate_ppl / DROP.reference_ppl
    assert figures["kl_nats"]["p999"] == DROP.kl_nats.p999
    assert figures["intervals"]["ppl_ratio"] == {"low": 0.99981, "high": 1.00157}
    assert [text["drop"]["candidate"]["ppl"] for text in figures["texts"]] == [38.3, 60.9]
    assert [rung["name"] for rung in figures["ladder"]["rungs"]][-2:] == ["graph", "bundle"]
    assert figures["continuations"][0]["same_tokens"] == 2
    assert figures["top1_agreement"] == DROP.top1_agreement
    assert (figures["tokens"], figures["windows"], figures["context"]) == (3060, 12, 256)
    assert figures["size_bytes"] == sum(figures["size_by_file"].values())
    assert figures["speed"]["decode_tokens_per_second"] == SPEED.decode_tokens_per_second
    assert figures["machine"]["cpu"] == MACHINE.cpu
    assert [text["name"] for text in figures["texts"]] == ["austen", "mine.txt"]


def test_only_speed_may_differ_between_two_runs():
    slower = dataclasses.replace(SPEED, decode_tokens_per_second=7.0)
    first, second = (json.loads(to_json(report_on(speed=s))) for s in (SPEED, slower))

    assert first.pop("speed") != second.pop("speed")
    assert first == second
    assert to_json(report_on()) == to_json(report_on())


def test_random_weights_have_no_accuracy_figure():
    report = report_on(random_manifest(), accuracy=None)
    figures = json.loads(to_json(report))

    assert figures["weights"] == "random"
    assert figures["reference"]["ppl"] is figures["candidate"]["ppl"] is None
    assert figures["ppl_ratio"] is figures["top1_agreement"] is figures["tokens"] is None
    assert set(figures["kl_nats"].values()) == {None}
    assert figures["speed"]["load_seconds"] == SPEED.load_seconds
    text = to_markdown(report)
    assert NO_ACCURACY in text.splitlines()[2]
    assert "perplexity" not in text
    assert "KL" not in text


def test_an_accuracy_of_random_weights_is_refused():
    message = (
        "wiola-120m-int8 has random weights, which have no accuracy; "
        "give a trained checkpoint to measure one"
    )
    with pytest.raises(EvaluationError, match=f"^{re.escape(message)}$"):
        report_on(random_manifest())


def test_what_was_not_measured_is_null_and_left_out():
    report = report_on(accuracy=None, speed=None)
    figures, text = json.loads(to_json(report)), to_markdown(report)

    assert figures["speed"] is None
    assert figures["ppl_ratio"] is None
    assert "Accuracy was not measured." in text
    assert "tokens/s" not in text


def test_a_packaged_text_on_a_foreign_checkpoint_is_put_in_its_place():
    foreign = manifest(variant="360m")

    assert WARNING not in to_markdown(report_on())
    assert WARNING in to_markdown(report_on(foreign))
    assert AUSTEN.description in to_markdown(report_on(foreign))
    own_text = Accuracy(drop=DROP, texts=(MINE,))
    assert WARNING not in to_markdown(report_on(foreign, accuracy=own_text))


def test_peak_memory_that_is_unknown_is_called_so():
    speed = dataclasses.replace(SPEED, peak_memory_bytes=None)

    assert "| peak memory of the process | unknown |" in to_markdown(report_on(speed=speed))


def test_a_scheme_that_does_not_pay_is_called_so():
    tiny = matrix("w", (4, 4), sources=["model.layers.0.mlp.w.weight"], size_bytes=64)
    pays = "this scheme does not pay here"

    assert pays in to_markdown(report_on(manifest([tiny])))
    assert pays not in to_markdown(report_on())


def test_a_long_list_of_kept_matrices_is_cut_in_markdown_only():
    kept = [matrix(f"m{i}", (4, 4), bits=16) for i in range(25)]
    report = report_on(manifest(kept))

    assert "and 5 more, listed in `report.json`" in to_markdown(report)
    assert len(json.loads(to_json(report))["coverage"]["kept"]) == 25


def test_a_float_bundle_needs_no_bits_and_blocks():
    spec = manifest(
        precision="fp32",
        quantization=dataclasses.replace(
            manifest().quantization, scheme="float", bits=32, block_size=0, tensors=()
        ),
    )
    text = to_markdown(report_on(spec))

    assert "Bundle: FP32, scheme `float`, target `cpu`." in text
    assert "Quantized 0 of 0 matrices; kept float: none.\n" in text


def test_one_scale_per_row_is_said_so():
    static = dataclasses.replace(
        manifest().quantization,
        scheme="static",
        block_size=0,
        method=None,
        smoothing=0.75,
        calibrator="percentile",
    )

    text = to_markdown(report_on(manifest(quantization=static)))

    assert (
        "Bundle: INT8, scheme `static`, 8 bits, one scale per row, activations smoothed with "
        "strength 0.75, their ranges found by `percentile`, target `cpu`."
    ) in text


def test_the_card_of_random_weights_warns_in_its_first_line():
    assert model_card(random_manifest(), None).splitlines()[0].startswith("> **Random weights.**")
    assert "Random weights" not in model_card(manifest(), report_on())


def test_the_card_gives_the_verdict_only_where_there_is_a_report():
    assert "98.71 %" in model_card(manifest(), report_on())
    assert "## Measured" not in model_card(manifest(), None)


def test_the_card_runs_the_bundle_on_its_own_target():
    card = model_card(manifest(target="cuda"), None)

    assert 'pip install "wiola-runtime[cuda]"' in card
    assert 'device="cuda"' in card


def test_the_card_lists_every_file_but_itself():
    card = model_card(manifest(), None)

    for name in ("model.onnx", "model.onnx.data", "tokenizer.json", "report.json"):
        assert f"| `{name}` |" in card
    assert "| `README.md` |" not in card


CALIBRATION = CalibrationRecord(
    files=(
        CalibrationFileRecord(
            name="a|b.txt", description="", sha256="5e" * 32, size_bytes=9, texts=2, tokens=600
        ),
    ),
    skipped_files=("notes.doc",),
    context=256,
    max_windows=8,
    seed=3,
    texts=2,
    tokens=600,
    windows=2,
    used_windows=2,
    used_tokens=512,
    unsampled_tokens=0,
    remainder_tokens=88,
    overlap=None,
    warnings=("2 windows were found, 8 were asked for",),
)


def test_the_texts_that_weights_were_rounded_on_are_named():
    report = dataclasses.replace(report_on(), calibration=CALIBRATION)
    text = to_markdown(report)

    assert json.loads(to_json(report))["calibration"]["used_tokens"] == 512
    assert (
        "- Calibration: 2 of 2 windows of 256 tokens, chosen with seed 3, from `a/b.txt` "
        "(SHA-256 `5e5e5e5e5e5e…`).\n- 2 windows were found, 8 were asked for\n"
    ) in text
    assert "Calibration" not in to_markdown(report_on())


def test_the_matrices_that_matter_most_come_first_where_that_is_known():
    nats = {"layers.0.qkv_gate": 0.5, "layers.0.up": 0.1}
    errors = {"layers.0.qkv_gate": 1e-5, "layers.0.up": 2e-5}
    by_error = make_report(
        manifest(), accuracy=ACCURACY, speed=SPEED, machine=MACHINE, errors=errors
    )
    by_sensitivity = make_report(
        manifest(),
        accuracy=ACCURACY,
        speed=SPEED,
        machine=MACHINE,
        errors=errors,
        sensitivity=nats,
    )

    def order(report):
        return re.findall(r"^\| `(layers[^`]+)`", to_markdown(report), flags=re.MULTILINE)

    assert order(by_error) == ["layers.0.up", "layers.0.qkv_gate"]
    assert order(by_sensitivity) == ["layers.0.qkv_gate", "layers.0.up"]
    assert "sensitivity, nats" in to_markdown(by_sensitivity)
    assert "sensitivity" not in to_markdown(by_error)


def test_sensitivities_of_random_weights_are_refused():
    with pytest.raises(EvaluationError, match="has random weights, which have no accuracy"):
        make_report(
            random_manifest(),
            accuracy=None,
            speed=None,
            machine=MACHINE,
            sensitivity={"layers.0.up": 0.1},
        )


def test_every_text_has_a_drop_or_none_has():
    message = "1 drops are given for 2 texts; give one for each, or none"
    with pytest.raises(EvaluationError, match=f"^{re.escape(message)}$"):
        dataclasses.replace(ACCURACY, by_text=ACCURACY.by_text[:1])


def test_a_row_has_a_cell_under_every_heading():
    message = "a row has 1 cells under 2 headings: x"
    with pytest.raises(EvaluationError, match=f"^{re.escape(message)}$"):
        Table(("a", "b"), (("x",),))
