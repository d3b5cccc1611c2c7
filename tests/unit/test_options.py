"""Every choice is checked when it is made; each refusal names the way out."""

from pathlib import Path

import pytest

from wiola_export.errors import OptionError
from wiola_export.options import CalibrationOptions, ExportOptions, Quantization, Source

CHECKPOINT = Source(checkpoint=Path("dir"))
RANDOM = Source(variant="120m")


def message_of(make, **choices):
    with pytest.raises(OptionError) as caught:
        make(**choices)
    return str(caught.value)


def options(precision="int8", source=CHECKPOINT, scheme=None, **choices):
    quantization = Quantization(precision=precision, scheme=scheme)
    return ExportOptions(source=source, quantization=quantization, **choices)


@pytest.mark.parametrize(
    ("choices", "scheme", "block_size", "bits"),
    [
        ({"precision": "fp32"}, "float", 0, 32),
        ({"precision": "fp16"}, "float", 0, 16),
        ({"precision": "int8"}, "weight-only", 32, 8),
        ({"precision": "int4"}, "weight-only", 32, 4),
        ({"precision": "int4", "block_size": 128}, "weight-only", 128, 4),
        ({"precision": "int8", "scheme": "dynamic"}, "dynamic", 0, 8),
    ],
)
def test_defaults_are_filled_in(choices, scheme, block_size, bits):
    made = Quantization(**choices)

    found = (made.resolved_scheme, made.resolved_block_size, made.bits)
    assert found == (scheme, block_size, bits)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"precision": "fp32", "scheme": "dynamic"},
            "--scheme dynamic has no effect with --fp32",
        ),
        ({"precision": "int8", "scheme": "float"}, "--scheme float contradicts --int8"),
        (
            {"precision": "int4", "scheme": "dynamic"},
            "--scheme dynamic has 8 bits; use it with --int8, not --int4",
        ),
        (
            {"precision": "fp16", "block_size": 32},
            "--block-size has no effect with --fp16, scheme float",
        ),
        (
            {"precision": "int8", "scheme": "dynamic", "block_size": 32},
            "--block-size has no effect with --int8, scheme dynamic",
        ),
        ({"precision": "fp32", "symmetric": True}, "--symmetric has no effect with --fp32"),
        (
            {"precision": "int4", "block_size": 48},
            "--block-size is 48; expected one of 16, 32, 64, 128",
        ),
    ],
)
def test_a_quantization_that_makes_no_sense(choices, message):
    assert message_of(Quantization, **choices) == message


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({}, "nothing to export; give --checkpoint DIR or --variant NAME"),
        (
            {"variant": "demo", "checkpoint": Path("dir")},
            "--variant demo is a checkpoint already; drop --checkpoint",
        ),
        ({"variant": "120m", "seed": -1}, "--seed is -1; expected 0 or more"),
        ({"variant": "demo", "seed": 3}, "--seed has no effect on a trained checkpoint"),
        (
            {"checkpoint": Path("dir"), "seed": 3},
            "--seed has no effect on a trained checkpoint",
        ),
    ],
)
def test_a_source_that_makes_no_sense(choices, message):
    assert message_of(Source, **choices) == message


def test_half_precision_needs_a_device_that_has_it():
    assert message_of(options, precision="fp16", target="cpu") == (
        "--fp16 needs --target cuda: float16 matrices have no CPU kernel and would be "
        "computed in float32; use --fp32 or --int8 with --target cpu"
    )


def test_cuda_has_no_attention_in_single_precision():
    assert message_of(options, precision="fp32", target="cuda") == (
        "--fp32 needs --target cpu or portable: attention on CUDA has no float32 kernel; "
        "use --fp16 with --target cuda"
    )


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"scheme": "dynamic", "target": "portable"},
            "--scheme dynamic needs --target cpu, not portable",
        ),
        ({"report": False, "text": Path("t")}, "--text has no effect with --no-report"),
        (
            {"source": RANDOM, "text": Path("t")},
            "--text has no effect on random weights, which have no accuracy",
        ),
    ],
)
def test_an_export_that_would_fail_minutes_later(choices, message):
    assert message_of(options, **choices) == message


@pytest.mark.parametrize(("source", "random"), [
    (CHECKPOINT, False), (RANDOM, True), (Source(variant="demo"), False),
    (Source(variant="120m", checkpoint=Path("dir")), False),
])  # fmt: skip
def test_only_a_size_without_a_checkpoint_is_random(source, random):
    assert source.is_random == random


def test_options_are_values():
    assert options() == options()
    assert len({options(), options(), options(target="cuda")}) == 2


NO_TEXT = CalibrationOptions(source="none")
AUSTEN = CalibrationOptions(source="austen")


@pytest.mark.parametrize(
    ("choices", "method", "calibrates"),
    [
        ({}, "gptq", True),
        ({"precision": "int4"}, "gptq", True),
        ({"calibration": NO_TEXT}, "nearest", False),
        ({"source": RANDOM}, "nearest", False),
        ({"precision": "fp32"}, "nearest", False),
        ({"precision": "fp32", "int8_cache": True}, "nearest", True),
    ],
)
def test_trained_weights_are_rounded_on_a_text_by_default(choices, method, calibrates):
    made = options(**choices)

    assert (made.method, made.calibrates) == (method, calibrates)


def test_a_text_without_effect_and_a_method_without_a_text_are_refused():
    gptq = Quantization(precision="int4", method="gptq")

    assert message_of(ExportOptions, source=CHECKPOINT, quantization=gptq, calibration=NO_TEXT) == (
        "--method gptq needs a text; drop --calibration none, or take --method nearest or hqq"
    )
    assert message_of(ExportOptions, source=RANDOM, quantization=gptq) == (
        "--method gptq needs trained weights: calibrating random ones says nothing; give "
        "--checkpoint DIR or drop --method"
    )
    assert message_of(options, source=RANDOM, calibration=AUSTEN) == (
        "--calibration has no effect here: the weights are random; drop it"
    )
    assert message_of(options, precision="fp32", calibration=AUSTEN) == (
        "--calibration has no effect here: scheme float needs no text; drop it"
    )
    assert message_of(Quantization, precision="fp32", method="hqq") == (
        "--method has no effect with --fp32, scheme float"
    )


@pytest.mark.parametrize(("field", "least"), [("windows", 1), ("context", 2), ("seed", 0)])
def test_calibration_figures_out_of_range_are_refused(field, least):
    assert message_of(CalibrationOptions, **{field: least - 1}) == (
        f"--calibration-{field} is {least - 1}; expected at least {least}, or --calibration none"
    )


def test_an_int8_cache_needs_the_cpu_and_a_text():
    assert message_of(options, int8_cache=True, target="portable") == (
        "--int8-cache needs --target cpu, not portable; drop it to keep the cache in floating point"
    )
    assert message_of(options, int8_cache=True, calibration=NO_TEXT) == (
        "--int8-cache needs a text; drop --calibration none"
    )
