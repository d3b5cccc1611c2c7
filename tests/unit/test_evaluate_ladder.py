"""A drop is laid at the door of the step that made it."""

import dataclasses
import re

import numpy as np
import pytest
from support.manifests import ladder

from wiola_export.errors import EvaluationError
from wiola_export.evaluate.divergence import TokenScores
from wiola_export.evaluate.ladder import make_ladder

ROUNDING, CONVERSION = ("checkpoint", "float16"), ("checkpoint", "graph")
QUANTIZATION = ("graph", "bundle")


def scores(*, kl_nats, windows=10, reference=3.0):
    shape = windows, 15
    return TokenScores(
        reference_nats=np.full(shape, reference),
        candidate_nats=np.full(shape, reference + kl_nats),
        kl_nats=np.full(shape, kl_nats),
        same_top1=np.ones(shape, bool),
        same_top5=np.ones(shape, np.float32),
    )


def climbed(*, conversion=0.0, quantization=0.0, precision="fp32"):
    steps = {
        ROUNDING: scores(kl_nats=0.0),
        CONVERSION: scores(kl_nats=conversion),
        QUANTIZATION: scores(kl_nats=quantization, reference=3.0 + conversion),
    }
    return make_ladder(steps, [10], precision=precision, graph_missing="")


def test_rungs_follow_one_another_from_the_checkpoint():
    found = climbed(conversion=0.1, quantization=0.2)

    assert [(r.name, r.compared_with) for r in found.rungs] == [
        ("checkpoint", None),
        ("float16", "checkpoint"),
        ("graph", "checkpoint"),
        ("bundle", "graph"),
    ]
    assert (found.tokens, found.windows) == (150, 10)


def test_the_steps_multiply_to_the_whole():
    found = climbed(conversion=0.1, quantization=0.2)
    first, _, graph, bundle = found.rungs

    assert graph.ppl_ratio * bundle.ppl_ratio == pytest.approx(bundle.ppl / first.ppl)
    assert bundle.ppl_ratio == pytest.approx(np.exp(0.2))


def test_a_fault_of_the_conversion_is_not_quantizations():
    found = climbed(conversion=0.05, quantization=1e-4)

    assert found.is_faithful is False
    assert found.conversion.kl_nats == pytest.approx(0.05)
    assert found.rungs[-1].kl_nats == pytest.approx(1e-4)


def test_a_coarse_quantization_is_not_the_conversions():
    assert climbed(conversion=1e-9, quantization=0.5).is_faithful is True


def test_float16_may_differ_more_than_float32():
    assert climbed(conversion=1e-4).is_faithful is False
    assert climbed(conversion=1e-4, precision="fp16").is_faithful is True
    assert climbed(conversion=1e-2, precision="fp16").is_faithful is False


def test_without_a_graph_nothing_is_said_of_the_conversion():
    steps = {ROUNDING: scores(kl_nats=0.0), ("float16", "bundle"): scores(kl_nats=0.1)}
    found = make_ladder(steps, [10], precision="fp32", graph_missing="it is too large")

    assert found.conversion is found.is_faithful is None


def test_a_bundle_that_is_not_quantized_shows_the_conversion_itself():
    steps = {ROUNDING: scores(kl_nats=0.0), ("checkpoint", "bundle"): scores(kl_nats=0.1)}
    found = make_ladder(steps, [10], precision="fp32", graph_missing="it is the bundle")

    assert found.conversion.name == "bundle"
    assert found.is_faithful is False


@pytest.mark.parametrize("given", [ladder(), ladder(graph_missing="it is too large")])
def test_a_missing_graph_has_a_reason_and_a_present_one_has_none(given):
    message = "a ladder has either a rung `graph` or a reason why it is missing; give one"
    with pytest.raises(EvaluationError, match=f"^{re.escape(message)}$"):
        dataclasses.replace(given, graph_missing="" if given.graph_missing else "it is too large")
