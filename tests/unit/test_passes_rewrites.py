"""What each pass makes of the calls it looks for, and what it leaves alone."""

import collections

import numpy as np
import pytest
from support import oracles
from support.graphs import GraphRunner, distance

from wiola_export.options import Quantization
from wiola_export.passes.fold_blend import FoldBlend
from wiola_export.passes.fuse_context import FuseContext
from wiola_export.passes.fuse_norms import FuseNorms
from wiola_export.passes.fuse_rotary import FuseRotary, spiral_tables, srpe_tables
from wiola_export.passes.merge_rotary import MergeRotary
from wiola_export.passes.pack_linears import PackLinears
from wiola_export.weights import initializer_weight

FP32 = Quantization(precision="fp32")
FP16 = Quantization(precision="fp16")
BLEND = "model.layers.1.attn.blend_logit"


def census(model):
    return collections.Counter(node.op_type for node in model.graph)


def with_blend(case, value):
    return case.weights | {BLEND: np.asarray(value, np.float32)}


def package_logits(case, weights):
    """Return torch's logits of the first row with other weights."""
    return GraphRunner(oracles.semantic(case, weights)).all_at_once(case.input_ids[:1])[0]


def test_a_blend_folds_into_its_neighbours():
    case = oracles.load("gqa3")
    model = oracles.semantic(case)

    FoldBlend()(model)

    assert census(model)["GatedBlend"] == 0
    beta = 1 / (1 + np.exp(-case.weights[BLEND]))
    scaled = {
        f"model.layers.1.attn.{part}_proj.weight": factor
        for part, factor in (("v_ctx", beta / (1 - beta)), ("o", 1 - beta), ("k_ctx", 1.0))
    }
    for name, factor in scaled.items():
        weight = initializer_weight(model.graph.initializers[name])
        np.testing.assert_allclose(weight.rows(0, 4), case.weights[name][:4] * factor, rtol=1e-6)


@pytest.mark.parametrize("logit", [-50.0, -12.0, 5.9, 6.1, 50.0])
@pytest.mark.parametrize(
    ("target", "form", "tolerance"), [("cpu", FP32, 2e-4), ("cuda", FP16, 0.1)]
)
def test_any_blend_gives_the_same_numbers(target, form, tolerance, logit):
    """A factor that would leave float16 stays a call, written out with its sigmoid."""
    case = oracles.load("gqa3")
    weights = with_blend(case, logit)

    model, _ = oracles.lowered(case, target, form, weights)

    found, _ = GraphRunner(model).all_at_once(case.input_ids[:1])
    assert distance(found, package_logits(case, weights)) < tolerance


@pytest.mark.parametrize(("logit", "left"), [(6.1, 1), (50.0, 1), (5.9, 0), (-50.0, 0)])
def test_only_a_huge_blend_stays_a_call(logit, left):
    case = oracles.load("gqa3")
    model = oracles.semantic(case, with_blend(case, logit))

    FoldBlend()(model)

    assert census(model)["GatedBlend"] == left


@pytest.mark.parametrize(("name", "softmaxes", "sigmoids"), [
    ("lookback1", 0, 0),
    ("gqa3", 0, 4),
    ("mha", 0, 2),
    ("lookback3", 3, 1),
])  # fmt: skip
def test_one_or_two_summaries_need_no_softmax(name, softmaxes, sigmoids):
    """Layer l of L reads min(lookback, l) summaries: one, two, or the general function."""
    model = oracles.semantic(oracles.load(name))
    before = census(model)

    FuseContext(lambda _: True)(model)

    assert census(model)["ContextAttention"] == softmaxes
    assert census(model)["Sigmoid"] - before["Sigmoid"] == sigmoids


def test_the_difference_of_two_summaries_is_projected():
    """What reads keys and values apart, or may not, subtracts their products instead."""
    case = oracles.load("gqa3")
    found = {}
    for packed in (True, False):
        for may_differ in (True, False):
            model = oracles.semantic(case)
            if packed:
                PackLinears(lambda _: None)(model)
            FuseContext(lambda _, may=may_differ: may)(model)
            found[packed, may_differ] = census(model)["Linear"], census(model)["Sub"]
            logits, _ = GraphRunner(model).all_at_once(case.input_ids)
            assert distance(logits, case.logits) < 1e-4

    plain, projected = found[True, False], found[True, True]
    assert projected == (plain[0], plain[1] - 4)  # layers 2 to 5 have two summaries
    assert found[False, True] == found[False, False]


def test_one_product_for_each_distinct_input():
    config = oracles.load("gqa3").config
    layers = config.num_hidden_layers
    model = oracles.semantic(oracles.load("gqa3"))

    PackLinears(lambda _: None)(model)

    # qkv and gate; context keys and values; o; gate_a, up_a and up_b; down_a; down_b; fusion.
    assert census(model)["Linear"] == 6 * layers + (layers - 1) + 1
    names = set(model.graph.initializers)
    assert "model.layers.1.attn.q_proj+k_proj+v_proj+gate_proj.weight" in names
    assert "model.layers.1.attn.k_ctx_proj+v_ctx_proj.weight" in names
    assert "model.layers.1.ffn.gate_a+up_a+up_b.weight" in names
    assert not any(name.endswith("q_proj.weight") for name in names)


def test_one_product_of_queries_keys_and_values_and_one_past_the_gate():
    model = oracles.semantic(oracles.load("nano_like"))

    PackLinears(lambda _: None)(model)

    # qkv; gate_fc1; gate_fc2; o; up and bypass; down; and the head.
    assert census(model)["Linear"] == 6 * 4 + 1
    names = set(model.graph.initializers)
    assert "model.layers.1.self_attn.q_proj+k_proj+v_proj.weight" in names
    assert "model.layers.1.mlp.up_proj+bypass_proj.weight" in names


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("name", "layers", "rotations"),
    [("nano_like", 4, 2), ("post_rope_gate", 3, 1), ("no_gate", 3, 1), ("wide_ffn", 3, 2)],
)
def test_gated_attention_is_the_kernel_on_gated_queries(name, layers, rotations, target):
    """A gate that reads unrotated queries needs them apart from the keys."""
    form = FP16 if target == "cuda" else FP32
    model, _ = oracles.lowered(oracles.load(name), target, form)

    found = census(model)
    assert found["GroupQueryAttention"] == layers
    assert found["RotaryEmbedding"] == rotations * layers
    assert found["SkipSimplifiedLayerNormalization"] == 2 * layers
    assert found["SimplifiedLayerNormalization"] == 1
    assert found["Softmax"] == 0
    assert found["ReduceMean"] == found["CumSum"] == (0 if name == "no_gate" else layers)


def test_every_norm_but_the_first_takes_its_addition_along():
    model = oracles.semantic(oracles.load("gqa3"))
    layers = 6

    FuseNorms()(model)

    found = census(model)
    assert found["WRMSNorm"] == 0
    assert found["SimplifiedLayerNormalization"] == 1
    assert found["SkipSimplifiedLayerNormalization"] == 2 * layers


def test_rotations_of_equal_constants_share_their_tables():
    model = oracles.semantic(oracles.load("spiral"))

    FuseRotary(512)(model)

    tables = [n for n in model.graph.initializers if n.startswith("srpe.")]
    assert len(tables) == 2
    assert census(model)["RotaryEmbedding"] == 8


def test_spiral_tables_are_exact_at_the_last_position():
    cos, sin = spiral_tables(512, 32, (10_000.0, 0.05))

    p, i = 511, 3
    angle = p * 10_000.0 ** (-2 * i / 32) * (1 + 0.05 * np.sqrt(i + 1) / np.sqrt(16))
    assert cos.shape == sin.shape == (512, 16)
    assert abs(cos[p, i] - np.cos(angle)) < 1e-7
    assert abs(sin[p, i] - np.sin(angle)) < 1e-7


@pytest.mark.parametrize("theta", [500.0, 10_000.0])
def test_without_a_spiral_the_tables_are_the_rotary_embeddings(theta):
    found = spiral_tables(64, 16, (theta, 0.0))
    expected = srpe_tables(64, 16, (theta, np.inf, 0.0, 0.0))

    assert all(map(np.array_equal, found, expected))


def test_queries_and_keys_are_rotated_together():
    model = oracles.semantic(oracles.load("gqa3"))

    for rewrite in (PackLinears(lambda _: None), FuseRotary(256), MergeRotary()):
        rewrite(model)

    assert census(model)["RotaryEmbedding"] == 6


def test_rotary_tables_are_exact_at_the_last_position():
    """Float32 arithmetic on the angle would be off by 1e-4 there."""
    cos, sin = srpe_tables(2048, 64, (10_000.0, 8.0, 0.1, 0.01))

    p, j = 2047, 1
    omega = 10_000.0 ** (-2 * j / 64)
    radius = 1 + 0.1 * np.sin(p * omega * 0.01)
    assert cos.shape == sin.shape == (2048, 32)
    assert abs(cos[p, j] - radius * np.cos(p * omega * 1.125)) < 1e-7
    assert abs(sin[p, j] - radius * np.sin(p * omega * 1.125)) < 1e-7
    assert np.array_equal(cos[0], np.ones(32, np.float32))
    assert np.array_equal(sin[0], np.zeros(32, np.float32))
