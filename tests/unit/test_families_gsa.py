"""The `gsa` family: its configuration, its state, and what its parts are without their extras."""

import math

import numpy as np
import pytest
import torch
from support import oracles
from support.graphs import distance

from wiola_export.errors import CheckpointError
from wiola_export.families import operators as ops
from wiola_export.families.gsa import GsaConfig

GOOD = oracles.load("nano_like").json_config


def parse(**changes):
    raw = GOOD | changes
    return GsaConfig.from_json({k: v for k, v in raw.items() if v != "absent"})


WRONG = {
    "hidden_size is missing; is this a Wiola checkpoint?": {"hidden_size": "absent"},
    "intermediate_size is 1.5; expected a positive integer": {"intermediate_size": 1.5},
    "spiral_alpha is inf; expected a finite number": {"spiral_alpha": math.inf},
    "rope_theta is 0.0; expected more than 0": {"rope_theta": 0},
    "use_attention_gate is 1; expected true or false": {"use_attention_gate": 1},
    "gate_pre_rope is 'yes'; expected true or false": {"gate_pre_rope": "yes"},
    "pad_token_id is 320; expected a token id below vocab_size 320": {"pad_token_id": 320},
    "hidden_size 64 is no multiple of num_attention_heads 5": {"num_attention_heads": 5},
    "head size 1 is odd; the rotation needs pairs": {"num_attention_heads": 64},
    "head_dim 32 is not hidden_size / num_attention_heads = 16": {"head_dim": 32},
}


@pytest.mark.parametrize(("message", "changes"), WRONG.items(), ids=WRONG)
def test_a_config_that_is_wrong_says_where(message, changes):
    with pytest.raises(CheckpointError) as caught:
        parse(**changes)

    assert str(caught.value) == f"config.json: {message}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spiral_beta", 0.1),
        ("gate_per_token", True),
        ("use_attention_sink", True),
        ("rope_scaling", {"type": "linear"}),
        ("sliding_window", 128),
    ],
)
def test_a_key_that_changes_inference_is_refused(key, value):
    with pytest.raises(CheckpointError) as caught:
        parse(**{key: value})

    assert str(caught.value) == (
        f"config.json: {key} = {value!r} changes what the model computes and is not supported; "
        f"export a checkpoint of the published architecture"
    )


def test_absent_flags_are_those_of_the_package():
    config = parse(
        use_attention_gate="absent", gate_pre_rope="absent", tie_word_embeddings="absent"
    )

    assert (config.use_attention_gate, config.gate_pre_rope, config.tie_word_embeddings) == (
        True, True, True,
    )  # fmt: skip


def test_every_layer_has_a_sum_where_there_is_a_gate():
    states = parse(num_hidden_layers=2).states()

    assert [(s.past, s.kind, s.axes) for s in states[:3]] == [
        ("past_key_values.0.key", "cache", ("B", 4, "P", 16)),
        ("past_key_values.0.value", "cache", ("B", 4, "P", 16)),
        ("past_summary.0", "sum", ("B", 16)),
    ]
    assert [s.past for s in states if s.kind == "sum"] == ["past_summary.0", "past_summary.1"]
    assert {s.dtype for s in states} == {"float32"}


def test_without_a_gate_there_is_neither_sum_nor_matrix():
    config = parse(use_attention_gate=False)

    assert {s.kind for s in config.states()} == {"cache"}
    assert not any("gate" in name for name in config.tensor_shapes())


def test_only_a_tied_model_may_hold_a_copy_of_its_table():
    assert parse().tied_copies() == {"lm_head.weight": "model.embed_tokens.weight"}
    assert parse(tie_word_embeddings=False).tied_copies() == {}
    assert "lm_head.weight" in parse(tie_word_embeddings=False).tensor_shapes()


def test_training_starts_norms_at_one_and_gates_half_open():
    assert parse(num_hidden_layers=1).initial_values() == {
        "model.norm.weight": 1.0,
        "model.layers.0.input_layernorm.weight": 1.0,
        "model.layers.0.post_attention_layernorm.weight": 1.0,
        "model.layers.0.self_attn.gate_fc2.bias": 0.0,
    }


def test_an_untied_head_makes_the_logits():
    """No recorded case is untied; a head of twice the embedding gives twice the logits."""
    tied = oracles.load("nano_like")
    config = GsaConfig.from_json(tied.json_config | {"tie_word_embeddings": False})
    weights = tied.weights | {"lm_head.weight": 2 * tied.weights["model.embed_tokens.weight"]}
    model = tied.family.build_model(config).eval()
    model.load_state_dict({name: torch.from_numpy(w) for name, w in weights.items()})

    found = logits(model, config, tied.input_ids)

    assert distance(found, 2 * tied.logits) < 2e-4


@pytest.mark.parametrize("pre_rope", [True, False])
def test_a_gate_that_is_open_is_no_gate(pre_rope):
    """With a large bias sigmoid is 1, wherever the gate reads the queries."""
    case = oracles.load("nano_like")
    opened = {
        name: np.full_like(w, 50) if name.endswith("fc2.bias") else w
        for name, w in case.weights.items()
    }
    found = [
        build_and_run(parse(gate_pre_rope=pre_rope), opened, case.input_ids),
        build_and_run(parse(use_attention_gate=False), opened, case.input_ids),
    ]

    assert distance(*found) < 1e-4
    assert distance(found[0], case.logits) > 0.1


def test_without_a_spiral_the_rotation_is_the_rotary_embedding():
    x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([[0, 1, 2], [5, 6, 7]])

    found = ops.spiral_rotary(x, positions, 16, (10_000.0, 0.0))

    angle = positions[..., None, None] * 10_000.0 ** (-torch.arange(0, 16, 2) / 16)
    low, high = x.unflatten(-1, (2, 16)).chunk(2, dim=-1)
    pairs = torch.complex(low, high) * torch.polar(torch.ones_like(angle), angle)
    expected = torch.cat((pairs.real, pairs.imag), dim=-1).flatten(-2)
    torch.testing.assert_close(found, expected)


def build_and_run(config, weights, ids):
    model = oracles.load("nano_like").family.build_model(config).eval()
    parameters = {name: torch.from_numpy(weights[name]) for name in model.state_dict()}
    model.load_state_dict(parameters)
    return logits(model, config, ids)


def logits(model, config, ids):
    """Return logits (B, T, V) of one full pass."""
    sizes = {"B": len(ids), "P": 0}
    empty = [torch.zeros([sizes.get(a, a) for a in state.axes]) for state in config.states()]
    with torch.no_grad():
        zeros, positions = torch.zeros(len(ids), dtype=torch.int64), torch.arange(ids.shape[1])
        return model(torch.from_numpy(ids), zeros, positions, empty)[0].numpy()
