"""Finding the model that options name."""

import numpy as np
import pytest
from support import oracles

from wiola_export.errors import CheckpointError, OptionError
from wiola_export.families import find_variant, variant_names
from wiola_export.options import DEMOS, Source
from wiola_export.source import demo_folder, find_model
from wiola_export.weights import RandomSource


@pytest.mark.parametrize(
    ("name", "family", "norm"),
    [
        ("demo", "gcla", "model.final_norm.weight"),
        ("demo-gsa", "gsa", "model.norm.weight"),
        ("demo-moment", "moment", "model.final_norm.weight"),
    ],
)
def test_a_demo_is_a_trained_checkpoint(name, family, norm):
    model = find_model(Source(variant=name))

    assert (model.name, model.variant, model.seed) == (name, name, None)
    assert model.family.name == family
    assert model.checkpoint.folder == demo_folder(name)
    assert model.config.vocab_size == 4096
    assert model.weights.read_rows(norm, 0, 3).shape == (3,)


@pytest.mark.parametrize("name", DEMOS)
def test_all_demos_have_the_tokenizer_of_the_first(name):
    """The same bytes are packaged once."""
    model = find_model(Source(variant=name))

    assert model.tokenizer.path == demo_folder() / "tokenizer.json"
    assert (model.tokenizer.bos_id, model.tokenizer.eos_ids(None)) == (1, (2,))
    copies = demo_folder().parent.glob("demo*/tokenizer.json")
    assert list(copies) == [model.tokenizer.path]


def test_a_size_alone_has_seeded_random_weights_and_the_demos_tokenizer():
    model = find_model(Source(variant="360m", seed=7))

    assert (model.name, model.variant, model.seed) == ("360m", "360m", 7)
    assert model.checkpoint is None
    assert isinstance(model.weights, RandomSource)
    assert model.tokenizer.path.parent == demo_folder()
    assert model.config == find_variant("360m")[1]
    assert model.warnings == ()


def test_a_folder_names_the_model(tmp_path):
    folder = oracles.write_checkpoint(oracles.load("untied"), tmp_path / "My.Model")

    model = find_model(Source(checkpoint=folder))

    assert (model.name, model.variant) == ("my.model", None)
    assert model.family.name == "gcla"


def test_a_name_needs_no_quotes_in_a_shell(tmp_path):
    folder = oracles.write_checkpoint(oracles.load("untied"), tmp_path / "Ünser Modell (v2)")

    assert find_model(Source(checkpoint=folder)).name == "nser-modell-v2"


def test_an_unknown_variant_lists_the_known():
    with pytest.raises(OptionError) as caught:
        find_model(Source(variant="7b"))

    known = ", ".join((*variant_names(), *DEMOS))
    assert str(caught.value) == f"unknown variant '7b'; expected one of {known}"


def test_weights_of_another_shape_are_refused(tmp_path):
    case = oracles.load("untied")
    weights = case.weights | {"model.final_norm.offset": np.zeros(63, np.float32)}
    folder = oracles.write_checkpoint(case, tmp_path / "checkpoint", weights)

    with pytest.raises(CheckpointError) as caught:
        find_model(Source(checkpoint=folder))

    assert str(caught.value) == (
        f"the weights in {folder} are not the model that config.json describes: 1 of another "
        f"shape (model.final_norm.offset is [63], expected [64]); use the config and the "
        f"weights of one model"
    )


def test_missing_and_unexpected_tensors_are_named(tmp_path):
    case = oracles.load("untied")
    weights = {n: w for n, w in case.weights.items() if n != "lm_head.weight"}
    weights["model.rotary.table"] = np.zeros(3, np.float32)
    folder = oracles.write_checkpoint(case, tmp_path / "checkpoint", weights)

    with pytest.raises(CheckpointError) as caught:
        find_model(Source(checkpoint=folder))

    assert "1 missing (lm_head.weight); 1 unexpected (model.rotary.table);" in str(caught.value)


@pytest.mark.parametrize("same", [True, False])
def test_a_stored_copy_of_a_tied_table_must_be_one(tmp_path, same):
    case = oracles.load("gqa3")
    table = case.weights["model.embed_tokens.weight"]
    weights = case.weights | {"lm_head.weight": table if same else table + np.float32(1)}
    folder = oracles.write_checkpoint(case, tmp_path / "checkpoint", weights)

    if same:
        assert find_model(Source(checkpoint=folder)).config.tie_word_embeddings
        return
    with pytest.raises(CheckpointError, match="set tie_word_embeddings to false if"):
        find_model(Source(checkpoint=folder))
