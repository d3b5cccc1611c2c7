"""The sentences that most people will read, and no other."""

import dataclasses

import pytest
from support.manifests import ACCURACY, DROP, MACHINE, drop, ladder, manifest, random_manifest

from wiola_export.evaluate.bootstrap import Interval
from wiola_export.report import make_report
from wiola_export.report.verdict import conversion, difference, verdict

TAKES = "The bundle takes 1.4 MiB, 8.39 bits per weight of its matrices."
INT8 = "INT8 keeps 98.71 % of the float model's most likely tokens; perplexity 42.00 → 42.03 (ratio"


def verdict_on(spec=None, accuracy=ACCURACY):
    spec = spec or manifest()
    return verdict(make_report(spec, accuracy=accuracy, speed=None, machine=MACHINE))


def with_ratio(low, high):
    intervals = dataclasses.replace(DROP.intervals, ppl_ratio=Interval(low, high))
    return dataclasses.replace(DROP, intervals=intervals)


def test_a_difference_that_cannot_be_shown_is_called_so():
    assert verdict_on() == (
        f"{INT8} 1.0007, 95 % interval 0.9998 to 1.0016: no difference of the perplexities can be "
        f"shown with this text). {TAKES}"
    )


def test_a_difference_that_is_shown_needs_no_words():
    accuracy = dataclasses.replace(ACCURACY, drop=with_ratio(1.0002, 1.0012))

    assert verdict_on(accuracy=accuracy) == (
        f"{INT8} 1.0007, 95 % interval 1.0002 to 1.0012). {TAKES}"
    )


def test_a_small_text_says_how_much_it_takes():
    short = drop(windows=3, reference_ppl=42.0038, candidate_ppl=42.0331)

    assert verdict_on(accuracy=dataclasses.replace(ACCURACY, drop=short)) == (
        f"{INT8} 1.0007; 3 windows are too little text to show a difference: give at least "
        f"2,048 tokens). {TAKES}"
    )


def test_a_fault_of_the_conversion_comes_first():
    accuracy = dataclasses.replace(ACCURACY, ladder=ladder(graph_nats=0.08))

    assert verdict_on(accuracy=accuracy).startswith(
        "The conversion changed the model before any weight was quantized: do not judge the "
        "format by these figures. INT8 keeps"
    )


def test_without_accuracy_only_the_size_is_stated():
    assert verdict_on(accuracy=None) == f"Accuracy was not measured. {TAKES}"
    assert verdict_on(random_manifest(), accuracy=None) == (
        f"Random weights: no accuracy can be stated. {TAKES}"
    )


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (with_ratio(0.99, 1.0), "no difference of the perplexities can be shown with this text"),
        (with_ratio(1.001, 1.1), "the perplexity is higher than the reference's"),
        (with_ratio(0.9, 0.999), "the perplexity is lower than the reference's"),
        (
            drop(windows=1, reference_ppl=2, candidate_ppl=2),
            "1 window is too little text to show a difference: give at least 2,048 tokens",
        ),
    ],
)
def test_every_interval_has_its_sentence(found, sentence):
    assert difference(found) == sentence


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (ladder(), "The conversion is faithful: the graph is 3.00e-09 nats from the checkpoint."),
        (
            ladder(graph_nats=0.02),
            (
                "The conversion changed the model before any weight was quantized: the graph is "
                "2.00e-02 nats from the checkpoint. Look for the fault in the conversion, not in "
                "the format of the weights."
            ),
        ),
        (
            ladder(graph_missing="it is too large"),
            (
                "Whether the conversion is faithful was not measured: it is too large. What it may "
                "have cost is counted as the quantization's."
            ),
        ),
    ],
)
def test_every_ladder_has_its_sentence(found, sentence):
    assert conversion(found) == sentence
