"""The `moment` family: its configuration, its state, and what its parts do to the model."""

import math

import pytest
import torch
from support import moment_cases, oracles
from support.graphs import distance

from wiola_export.errors import CheckpointError
from wiola_export.families import detect
from wiola_export.families.moment import MomentConfig

GOOD = dict(moment_cases.CONFIGS["moment_deep"].to_json())


def parse(**changes):
    raw = GOOD | changes
    return MomentConfig.from_json({k: v for k, v in raw.items() if v != "absent"})


WRONG = {
    "hidden_size is missing; is this a Wiola checkpoint?": {"hidden_size": "absent"},
    "variance_scale is missing; is this a Wiola checkpoint?": {"variance_scale": "absent"},
    "difference_size is 0; expected a positive integer": {"difference_size": 0},
    "variance_scale is 0.0; expected more than 0": {"variance_scale": 0},
    "variance_eps is -1.0; expected more than 0": {"variance_eps": -1},
    "unit_norm_eps is inf; expected a finite number": {"unit_norm_eps": math.inf},
    "hidden_size 64 is no multiple of num_attention_heads 5": {"num_attention_heads": 5},
    "head size 1 is odd; the rotation needs pairs": {"num_attention_heads": 64},
    "head_dim 32 is not hidden_size / num_attention_heads = 16": {"head_dim": 32},
    "bos_token_id is 331; expected a token id below vocab_size 331": {"bos_token_id": 331},
}


@pytest.mark.parametrize(("message", "changes"), WRONG.items(), ids=WRONG)
def test_a_config_that_is_wrong_says_where(message, changes):
    with pytest.raises(CheckpointError) as caught:
        parse(**changes)

    assert str(caught.value) == f"config.json: {message}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("variance_clamp", 1.0),
        ("difference_depth", 2),
        ("unit_norm_gain", True),
        ("rope_scaling", {"type": "linear"}),
        ("num_key_value_heads", 2),
    ],
)
def test_a_key_that_changes_inference_is_refused(key, value):
    with pytest.raises(CheckpointError) as caught:
        parse(**{key: value})

    assert str(caught.value) == (
        f"config.json: {key} = {value!r} changes what the model computes and is not supported; "
        f"export a checkpoint of the published architecture"
    )


def test_the_family_is_told_by_two_of_its_keys():
    assert detect(GOOD).name == "moment"
    with pytest.raises(CheckpointError):
        detect({key: value for key, value in GOOD.items() if key != "difference_size"})


def test_an_absent_constant_is_the_descriptions():
    absent = dict.fromkeys(
        ("rms_norm_eps", "unit_norm_eps", "variance_eps", "rope_theta"), "absent"
    )
    config = parse(**absent, tie_word_embeddings="absent")

    assert (config.rms_norm_eps, config.unit_norm_eps, config.variance_eps) == (1e-6,) * 3
    assert config.rope_theta == 10_000
    assert not config.tie_word_embeddings


def test_only_keys_and_values_are_kept():
    states = parse(num_hidden_layers=2).states()

    assert [(s.past, s.present) for s in states] == [
        (f"past_key_values.{layer}.{name}", f"present.{layer}.{name}")
        for layer in (0, 1)
        for name in ("key", "value")
    ]
    assert {(s.kind, s.dtype, s.axes) for s in states} == {("cache", "float32", ("B", 4, "P", 16))}


def test_the_first_layer_has_no_differences_to_route():
    names = parse(num_hidden_layers=2).tensor_shapes()

    assert {n.split(".")[2] for n in names if "differences" in n} == {"1"}


def test_training_starts_gains_at_one():
    values = parse(num_hidden_layers=1).initial_values()

    assert values == dict.fromkeys(
        (
            "model.final_norm.weight",
            "model.layers.0.input_norm.weight",
            "model.layers.0.post_attn_norm.weight",
        ),
        1.0,
    )


@pytest.mark.parametrize("part", ["ffn.variance_proj", "differences.a_proj", "attn.gate_proj"])
def test_every_part_matters(part):
    """Without it, logits are far from the description's: no test passes by accident."""
    case = oracles.load("moment_deep")
    model = oracles.torch_model(case)
    for name, weight in model.named_parameters():
        if part in name:
            weight.zero_()

    states = [torch.zeros(2, 4, 0, 16) for _ in case.config.states()]
    with torch.no_grad():
        found, *_ = model(
            torch.from_numpy(case.input_ids),
            torch.zeros(2, dtype=torch.int64),
            torch.arange(48),
            states,
        )

    assert distance(found, case.logits) > 0.3
