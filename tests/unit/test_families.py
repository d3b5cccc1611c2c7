"""Configurations: read from JSON, checked, and telling what a checkpoint must hold.

What is about the fields of one family is about `gcla` here; the others have files of their own.
"""

import math

import pytest
from support import oracles

from wiola_export.errors import CheckpointError, OptionError
from wiola_export.families import detect, find_variant, variant_names
from wiola_export.families.gcla import GclaConfig

GOOD = oracles.load("gqa3").json_config
SIZES = {
    "gcla": {
        "120m": 147_297_804,
        "360m": 318_048_272,
        "700m": 1_068_518_424,
        "1.5b": 2_179_698_716,
    },
    "gsa": {"nano": 12_915_888, "micro": 26_454_624, "small": 54_154_944},
    "moment": {"moment-27m": 26_712_320},
}


def parse(**changes):
    raw = GOOD | changes
    return GclaConfig.from_json({k: v for k, v in raw.items() if v != "absent"})


@pytest.mark.parametrize(
    ("expected", "name", "parameters"),
    [(family, *size) for family, sizes in SIZES.items() for size in sizes.items()],
)
def test_published_sizes_have_the_packages_parameters(expected, name, parameters):
    family, config = find_variant(name)

    assert family.name == expected
    assert sum(math.prod(shape) for shape in config.tensor_shapes().values()) == parameters


def test_no_two_families_share_the_name_of_a_size():
    assert len(set(variant_names())) == len(variant_names())


def test_an_unknown_size_lists_the_known():
    with pytest.raises(OptionError) as caught:
        find_variant("7b")

    known = ", ".join(variant_names())
    assert str(caught.value) == f"unknown variant '7b'; expected one of {known}"
    assert known.startswith("120m, 360m, 700m, 1.5b, nano, micro, small")


@pytest.mark.parametrize("name", oracles.NAMES)
def test_the_shapes_are_those_of_the_recorded_checkpoints(name):
    case = oracles.load(name)

    shapes = {key: array.shape for key, array in case.weights.items()}

    assert case.config.tensor_shapes() == shapes


@pytest.mark.parametrize("name", oracles.NAMES)
def test_the_torch_module_has_the_packages_parameter_names(name):
    case = oracles.load(name)

    assert set(oracles.torch_model(case).state_dict()) == set(case.weights)


def test_a_config_of_no_family_is_refused():
    with pytest.raises(CheckpointError) as caught:
        detect({"model_type": "wiola", "hidden_size": 256})

    assert str(caught.value).startswith(
        "config.json (model_type 'wiola') fits no known model family; expected the keys of one "
        "of: gcla: dsff_narrow_size, dsff_wide_size, gcla_lookback; "
        "gsa: intermediate_size, spiral_alpha"
    )


def test_a_config_of_two_families_is_refused():
    with pytest.raises(CheckpointError) as caught:
        detect(GOOD | {"spiral_alpha": 0.05, "intermediate_size": 128})

    assert str(caught.value) == (
        "config.json has the keys of the families gcla and gsa; expected those of one model"
    )


def test_the_family_is_told_by_its_keys_not_by_its_name():
    """Both published packages write the same model_type."""
    other = oracles.load("nano_like").json_config

    assert GOOD["model_type"] == other["model_type"] == "wiola"
    assert detect(GOOD | {"model_type": "something"}).name == "gcla"
    assert detect(other | {"model_type": "something"}).name == "gsa"


def test_an_absent_tie_means_tied():
    assert parse(tie_word_embeddings="absent").tie_word_embeddings
    assert parse(tie_word_embeddings=None).tie_word_embeddings
    assert not parse(tie_word_embeddings=False).tie_word_embeddings


def test_training_settings_change_nothing():
    assert parse(atm_enabled=True, atm_threshold=0.5, gcla_gate_init=1.0, dropout=0.1) == parse()


WRONG = {
    "hidden_size is missing; is this a Wiola checkpoint?": {"hidden_size": "absent"},
    "hidden_size is 96.0; expected a positive integer": {"hidden_size": 96.0},
    "num_hidden_layers is 0; expected a positive integer": {"num_hidden_layers": 0},
    "gcla_lookback is True; expected a positive integer": {"gcla_lookback": True},
    "srpe_theta is 'x'; expected a finite number": {"srpe_theta": "x"},
    "rms_norm_eps is nan; expected a finite number": {"rms_norm_eps": math.nan},
    "tie_word_embeddings is 1; expected true or false": {"tie_word_embeddings": 1},
    "gqa_grouping is 'odd'; expected 'blocked' or 'interleaved'": {"gqa_grouping": "odd"},
    "bos_token_id is 320; expected a token id below vocab_size 320": {"bos_token_id": 320},
    "hidden_size 96 is no multiple of num_attention_heads 5": {"num_attention_heads": 5},
    "num_attention_heads 6 is no multiple of num_key_value_heads 4": {"num_key_value_heads": 4},
    "head size 3 is odd; the rotation needs pairs": {"num_attention_heads": 32},
    "num_hidden_layers is 1099511627776; expected at most 1024": {"num_hidden_layers": 1 << 40},
    "max_position_embeddings is 1099511627776; expected at most 1048576": {
        "max_position_embeddings": 1 << 40
    },
    "srpe_theta is -1.0; expected more than 0": {"srpe_theta": -1.0},
    "srpe_spiral_divisor is -8.0; expected more than 0": {"srpe_spiral_divisor": -8},
    "head_dim 32 is not hidden_size / num_attention_heads = 16": {"head_dim": 32},
}


@pytest.mark.parametrize(("message", "changes"), WRONG.items(), ids=WRONG)
def test_a_config_that_is_wrong_says_where(message, changes):
    with pytest.raises(CheckpointError) as caught:
        parse(**changes)

    assert str(caught.value) == f"config.json: {message}"


@pytest.mark.parametrize(
    ("key", "value"),
    [("gcla_window", 3), ("rope_scaling", {"type": "linear"}), ("sliding_window", 128)],
)
def test_a_key_that_changes_inference_is_refused(key, value):
    with pytest.raises(CheckpointError) as caught:
        parse(**{key: value})

    assert str(caught.value) == (
        f"config.json: {key} = {value!r} changes what the model computes and is not supported; "
        f"export a checkpoint of the published architecture"
    )


@pytest.mark.parametrize("name", oracles.NAMES)
def test_a_config_survives_its_own_json(name):
    config = oracles.load(name).config

    assert type(config).from_json(config.to_json()) == config
    assert detect(config.to_json()).name == oracles.load(name).family.name


def test_state_is_listed_in_the_order_of_the_layers():
    states = parse(num_hidden_layers=2).states()

    assert [(s.past, s.kind) for s in states] == [
        ("past_key_values.0.key", "cache"),
        ("past_key_values.0.value", "cache"),
        ("past_summary.0", "sum"),
        ("past_key_values.1.key", "cache"),
        ("past_key_values.1.value", "cache"),
    ]
    assert states[0].axes == ("B", 2, "P", 16)
    assert states[2].axes == ("B", 96)
    assert {s.dtype for s in states} == {"float32"}


def test_only_a_tied_model_may_hold_a_copy_of_its_table():
    assert parse().tied_copies() == {"lm_head.weight": "model.embed_tokens.weight"}
    assert parse(tie_word_embeddings=False).tied_copies() == {}
    assert "lm_head.weight" in parse(tie_word_embeddings=False).tensor_shapes()


def test_training_starts_norms_and_blends_at_one_value():
    values = parse(num_hidden_layers=1).initial_values()

    assert values == {
        "model.final_norm.weight": 1.0,
        "model.final_norm.offset": 0.0,
        "model.layers.0.input_norm.weight": 1.0,
        "model.layers.0.input_norm.offset": 0.0,
        "model.layers.0.post_attn_norm.weight": 1.0,
        "model.layers.0.post_attn_norm.offset": 0.0,
        "model.layers.0.attn.blend_logit": -3.0,
    }
