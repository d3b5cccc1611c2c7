"""SmoothQuant: the scales of the paper, and a model that computes the same.

Axes: P produced features, K features of a reader, N its rows.
"""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import oracles
from support.graphs import GraphRunner, distance
from support.outliers import disturbed
from support.progress import Recording

from wiola_export import pipeline
from wiola_export.calibrate import observers
from wiola_export.calibrate.activations import ActivationCalibrator
from wiola_export.calibrate.levels import too_few_in_range
from wiola_export.calibrate.smooth import smoothing_scales
from wiola_export.errors import QuantizationError
from wiola_export.families.layered import Rescaling
from wiola_export.options import ExportOptions, Quantization, Source
from wiola_export.prepare import Prepared, make_policy
from wiola_export.progress import Silent
from wiola_export.source import find_model

HEADS = Rescaling(readers=("o",), producers=("v",), repeats=3, run=4)  # 2 key heads of size 4
NORM = Rescaling(readers=("q", "k"), producers=("g",))
strengths = st.floats(0, 1)


def drawn(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).uniform(0.1, 3, shape).astype("float32"))


@given(strengths)
def test_scales_are_those_of_the_paper(strength):
    weights, largest = {"q": drawn(0, 5, 6), "k": -drawn(1, 3, 6)}, drawn(2, 6)

    scales = smoothing_scales(NORM, weights, largest, strength)

    for feature in range(6):
        columns = [weights[name][:, feature].abs().max() for name in ("q", "k")]
        expected = largest[feature] ** strength / max(columns) ** (1 - strength)
        assert scales[feature] == pytest.approx(float(expected), rel=1e-5)


@given(strengths)
def test_one_value_that_many_heads_read_has_one_scale(strength):
    """The largest of what they read, and of how they weigh it."""
    weights, largest = {"o": drawn(3, 5, 24)}, drawn(4, 24)

    scales = smoothing_scales(HEADS, weights, largest, strength)

    readers_of = [[group * 12 + i * 4 + j for i in range(3)] for group in (0, 1) for j in range(4)]
    for scale, readers in zip(scales, readers_of, strict=True):
        active, column = largest[readers].max(), weights["o"][:, readers].max()
        expected = active**strength / column ** (1 - strength)
        assert scale == pytest.approx(float(expected), rel=1e-5)


def test_the_ends_level_the_weights_or_the_activations():
    weights, largest = {"q": drawn(5, 5, 6), "k": drawn(6, 3, 6)}, drawn(7, 6)

    at_0, at_1 = (smoothing_scales(NORM, weights, largest, strength) for strength in (0.0, 1.0))

    columns = torch.cat([weights["q"], weights["k"]]).amax(dim=0)
    assert columns * at_0 == pytest.approx(torch.ones(6))
    assert largest / at_1 == pytest.approx(torch.ones(6))


@given(strengths, st.floats(1e-3, 1e3))
def test_an_outlier_that_the_weights_make_good_is_undone(strength, factor):
    """Whatever the strength: it is as much larger here as the weights are smaller there."""
    weights, largest = {"q": drawn(8, 5, 6), "k": drawn(9, 3, 6)}, drawn(10, 6)
    disturbed = {name: weight.clone() for name, weight in weights.items()}
    for weight in disturbed.values():
        weight[:, 2] /= factor
    louder = largest.clone()
    louder[2] *= factor

    before = smoothing_scales(NORM, weights, largest, strength)
    after = smoothing_scales(NORM, disturbed, louder, strength)

    assert after[2] / before[2] == pytest.approx(factor, rel=1e-4)
    assert louder / after == pytest.approx(largest / before, rel=1e-4)


@pytest.mark.parametrize(("active", "read"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_features_that_are_never_active_or_never_read_stay(active, read):
    weights = {"q": torch.tensor([[1.0, read]]), "k": torch.tensor([[2.0, read]])}

    scales = smoothing_scales(NORM, weights, torch.tensor([3.0, active]), 0.5)

    assert scales[1] == 1
    assert torch.isfinite(scales).all()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    case = oracles.load("gqa3")
    return oracles.write_checkpoint(case, tmp_path_factory.mktemp("case") / "checkpoint")


def calibrated(checkpoint, folder, windows, **choices):
    return ActivationCalibrator(**choices).calibrate(
        find_model(Source(checkpoint=checkpoint)), windows, folder, Silent()
    )


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_a_smoothed_model_computes_the_same(checkpoint, tmp_path, strength):
    """Every freedom of every layer is used, and none that is not there."""
    case = oracles.load("gqa3")
    found = calibrated(checkpoint, tmp_path, case.input_ids, smoothing=strength, calibrator=None)
    floats = Quantization(precision="fp32")
    options = ExportOptions(source=Source(checkpoint=checkpoint), quantization=floats)
    prepared = Prepared(policy=make_policy(floats, "cpu"), factors=found.factors)

    with mock.patch("wiola_export.trace.trace", oracles.shared_trace):
        model = find_model(options.source)
        graph, _ = pipeline.build_graph(model, options, Silent(), prepared)

    logits, _ = GraphRunner(graph).all_at_once(case.input_ids)
    assert distance(logits, case.logits) < 1e-3
    assert len(found.factors) > 8 * case.config.num_hidden_layers


@pytest.mark.parametrize("calibrator", ["minmax", "percentile", "entropy"])
def test_every_matrix_between_embedding_and_head_gets_a_range(
    checkpoint, tmp_path, calibrator, monkeypatch
):
    """Matrices that read one input share its range, so that they can be packed."""
    monkeypatch.setattr(observers, "BINS", 256)  # quick
    case = oracles.load("gqa3")

    found = calibrated(checkpoint, tmp_path, case.input_ids, smoothing=None, calibrator=calibrator)

    unread = [f"model.layers.0.attn.{name}_ctx_proj.weight" for name in "kv"]
    inside = [n for n, w in case.weights.items() if w.ndim == 2 and "layers" in n]
    assert set(found.ranges) == {*inside} - {*unread}
    assert not found.factors
    attention = [found.ranges[f"model.layers.1.attn.{n}_proj.weight"] for n in "qkv"]
    assert len(set(attention)) == 1


def test_smoothing_is_part_of_the_ranges(checkpoint, tmp_path):
    """At strength 1 no activation that is free to be scaled is larger than 1."""
    case = oracles.load("gqa3")

    found = calibrated(checkpoint, tmp_path, case.input_ids, smoothing=1.0, calibrator="minmax")

    for name, activations in found.ranges.items():
        if name.endswith(("q_proj.weight", "up_b.weight", "o_proj.weight", "down_a.weight")):
            reach = max(activations.zero_point, 255 - activations.zero_point) * activations.scale
            assert reach == pytest.approx(1, abs=activations.scale), name


def test_the_number_of_windows_is_without_effect_where_they_are_the_same(checkpoint, tmp_path):
    """Groups of windows are streamed; a repeated window adds nothing new."""
    ids = oracles.load("gqa3").input_ids[:1]
    (tmp_path / "one").mkdir(), (tmp_path / "many").mkdir()
    choices = {"smoothing": 0.5, "calibrator": "minmax"}

    one = calibrated(checkpoint, tmp_path / "one", ids, **choices)
    many = calibrated(checkpoint, tmp_path / "many", np.repeat(ids, 19, axis=0), **choices)

    for name, activations in one.ranges.items():
        assert many.ranges[name].scale == pytest.approx(activations.scale, rel=1e-4), name


def test_channels_that_dwarf_the_others_are_told():
    """Where smoothing reaches, it is the way out; the rest is left to blocks."""
    levels = {"a.weight": 13.0, "b.weight": 0.44, "c.weight": 3.9}

    assert too_few_in_range({"a.weight": 13.0}, None) is None
    assert too_few_in_range(levels, None) == (
        "single channels dwarf the others in 2 of 3 inputs: half of what b reads stays within "
        "0.4 of 255 steps; smooth them with --smooth 0.75, or take --scheme weight-only "
        "--method awq"
    )
    assert too_few_in_range(levels, 0.75).endswith(
        " within 0.4 of 255 steps; take --scheme weight-only --method awq"
    )


@pytest.mark.parametrize(("smoothing", "warnings"), [(None, 1), (0.75, 0)])
def test_smoothing_leaves_no_warning(tmp_path, smoothing, warnings):
    case = oracles.load("gqa3")
    weights = disturbed(case.weights, case.config.num_hidden_layers, 300)
    checkpoint = oracles.write_checkpoint(case, tmp_path / "checkpoint", weights)
    (tmp_path / "states").mkdir()
    progress = Recording()

    calibrator = ActivationCalibrator(smoothing=smoothing, calibrator=None)
    model = find_model(Source(checkpoint=checkpoint))
    calibrator.calibrate(model, case.input_ids, tmp_path / "states", progress)

    assert len(progress.warnings) == warnings


def test_activations_that_are_not_finite_are_named(tmp_path):
    case = oracles.load("gqa3")
    weights = {name: tensor.copy() for name, tensor in case.weights.items()}
    weights["model.layers.1.post_attn_norm.weight"][:] = 3e38
    checkpoint = oracles.write_checkpoint(case, tmp_path / "checkpoint", weights)
    (tmp_path / "states").mkdir()

    with pytest.raises(QuantizationError) as caught:
        calibrated(
            checkpoint, tmp_path / "states", case.input_ids, smoothing=0.5, calibrator="minmax"
        )

    assert str(caught.value) == (
        "the input of model.layers.1.ffn.gate_a.weight is not finite in the float model; check "
        "the checkpoint, or keep activations in floating point: --scheme weight-only"
    )
