"""Choices about 8-bit activations: defaults, and what is refused."""

from pathlib import Path

import pytest

from wiola_export.commands.export import smoothing
from wiola_export.errors import OptionError
from wiola_export.options import (
    CalibrationOptions,
    ExportOptions,
    Quantization,
    Source,
)

CHECKPOINT, RANDOM = Source(checkpoint=Path("dir")), Source(variant="120m")
NO_TEXT = CalibrationOptions(source="none")


def options(scheme, **choices):
    fields = ("smooth", "calibrator", "precision")
    chosen = {name: choices.pop(name) for name in fields if name in choices}
    quantization = Quantization(**{"precision": "int8", "scheme": scheme, **chosen})
    return ExportOptions(**{"source": CHECKPOINT, "quantization": quantization, **choices})


@pytest.mark.parametrize("scheme", ["dynamic", "static"])
def test_activations_are_smoothed_where_there_is_a_text(scheme):
    default = options(scheme)

    assert default.smoothing == 0.75
    assert default.calibrates
    assert options(scheme, smooth=0.0).smoothing == 0
    assert options(scheme, smooth="none").smoothing is None


@pytest.mark.parametrize("choices", [{"calibration": NO_TEXT}, {"source": RANDOM}])
def test_dynamic_ranges_need_no_text(choices):
    without = options("dynamic", **choices)

    assert without.smoothing is None
    assert not without.calibrates


def test_static_ranges_are_calibrated_even_unsmoothed():
    assert options("static", smooth="none").calibrates
    assert options("static").calibrator == "percentile"
    assert options("static", calibrator="entropy").calibrator == "entropy"
    assert options("dynamic").calibrator is None


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"scheme": "static", "precision": "int4"},
            "--scheme static has 8 bits; use it with --int8, not --int4",
        ),
        (
            {"scheme": "static", "target": "cuda"},
            "--scheme static needs --target cpu or portable, not cuda",
        ),
        (
            {"scheme": "weight-only", "smooth": 0.5},
            "--smooth has no effect with --int8, scheme weight-only",
        ),
        (
            {"scheme": "weight-only", "smooth": "none"},
            "--smooth has no effect with --int8, scheme weight-only",
        ),
        (
            {"scheme": "dynamic", "calibrator": "minmax"},
            "--calibrator has no effect with --int8, scheme dynamic",
        ),
        ({"scheme": "static", "smooth": 1.5}, "--smooth is 1.5; expected 0 to 1, or none"),
        ({"scheme": "dynamic", "smooth": -0.1}, "--smooth is -0.1; expected 0 to 1, or none"),
        (
            {"scheme": "static", "smooth": float("nan")},
            "--smooth is nan; expected 0 to 1, or none",
        ),
        (
            {"scheme": "static", "calibration": NO_TEXT},
            "--scheme static needs a text; drop --calibration none",
        ),
        (
            {"scheme": "dynamic", "smooth": 0.5, "calibration": NO_TEXT},
            "--smooth 0.5 needs a text; drop --calibration none",
        ),
        (
            {"scheme": "static", "source": RANDOM},
            (
                "--scheme static needs trained weights: calibrating random ones says nothing; "
                "give --checkpoint DIR or take another scheme"
            ),
        ),
        (
            {
                "scheme": "dynamic",
                "smooth": "none",
                "calibration": CalibrationOptions(source="kjv"),
            },
            "--calibration has no effect here: nothing is smoothed; drop it",
        ),
    ],
)
def test_what_is_out_of_range_or_without_effect_is_refused(choices, message):
    with pytest.raises(OptionError) as caught:
        options(**choices)

    assert str(caught.value) == message


@pytest.mark.parametrize(("given", "found"), [(None, None), ("none", "none"), ("0.25", 0.25)])
def test_the_command_line_takes_a_strength_or_none(given, found):
    assert smoothing(given) == found


def test_a_strength_that_is_no_number_is_refused():
    with pytest.raises(OptionError, match=r"^--smooth is strong; expected 0 to 1, or none$"):
        smoothing("strong")
