"""Which tokens begin and end a text is told by five files that need not agree."""

import os
from pathlib import Path

import pytest
from support.checkpoint_folder import DEMO, LFS_POINTER, copy_demo, edit_json
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from wiola_export.checkpoint import open_checkpoint
from wiola_export.checkpoint.generation_config import sampling_defaults
from wiola_export.checkpoint.source_file import read_json_object
from wiola_export.checkpoint.tokenizer_files import read_optional, read_tokenizer
from wiola_export.errors import CheckpointError


@pytest.fixture
def folder(tmp_path):
    return copy_demo(tmp_path / "model")


def tokenizer_of(folder):
    return open_checkpoint(folder).tokenizer


def refused(folder, message):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_demo_begins_with_bos_and_ends_with_eos_or_its_turn_end():
    tokenizer = tokenizer_of(DEMO)

    assert tokenizer.path == DEMO / "tokenizer.json"
    assert (tokenizer.bos_id, tokenizer.adds_bos, tokenizer.pad_id) == (1, False, 0)
    assert tokenizer.eos_ids("<|end|>") == (2, 7)
    assert tokenizer.eos_ids(None) == tokenizer.eos_ids("<|never|>") == (2,)
    assert tokenizer.token_id("<|user|>") == 4
    assert tokenizer.token_id("<|never|>") is None
    assert tokenizer.chat_template is None
    assert tokenizer.generation_defaults == {}
    assert tokenizer.warnings == ()


def test_the_files_of_a_checkpoint_may_be_absent(folder):
    for name in ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        (folder / name).unlink()

    assert tokenizer_of(folder).eos_ids("<|end|>") == (2, 7)


def test_eos_is_the_union_of_what_four_files_declare(folder):
    edit_json(folder / "config.json", eos_token_id=[12, 10])
    edit_json(folder / "generation_config.json", eos_token_id=11)
    edit_json(folder / "tokenizer_config.json", eos_token="<unk>")
    edit_json(folder / "special_tokens_map.json", eos_token={"content": "<|system|>"})

    assert tokenizer_of(folder).eos_ids("<|end|>") == (3, 6, 7, 10, 11, 12)


@pytest.mark.parametrize("nothing", [None, -1, []])
def test_without_any_eos_the_user_is_told(folder, nothing):
    edit_json(folder / "config.json", eos_token_id=nothing)
    edit_json(folder / "generation_config.json", eos_token_id=nothing)
    edit_json(folder / "tokenizer_config.json", eos_token="<|never|>")
    edit_json(folder / "special_tokens_map.json", eos_token=None)

    assert tokenizer_of(folder).eos_ids(None) == ()
    assert "the checkpoint names no eos token; replies end at their length limit" in (
        open_checkpoint(folder).warnings
    )


def test_two_bos_tokens_are_a_warning_and_the_config_wins(folder):
    edit_json(folder / "tokenizer_config.json", bos_token="<unk>")

    assert tokenizer_of(folder).bos_id == 1
    assert tokenizer_of(folder).warnings == (
        "the checkpoint names [1, 3] as its bos token; 1 is used",
    )


def test_a_bos_that_only_the_tokenizer_names_is_found(folder):
    edit_json(folder / "config.json", bos_token_id=None)
    edit_json(folder / "generation_config.json", bos_token_id=None)

    assert tokenizer_of(folder).bos_id == 1


def test_a_tokenizer_that_adds_bos_is_noticed(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))

    assert tokenizer_of(folder).adds_bos


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("2", "eos_token_id is '2', expected token ids; correct it"),
        (True, "eos_token_id is True, expected token ids; correct it"),
        ([2, 1.5], "eos_token_id is [2, 1.5], expected token ids; correct it"),
        (-2, "eos_token_id is -2, expected token ids; correct it"),
        (4096, "eos_token_id is 4096, expected ids below vocab_size 4096; correct it"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_an_impossible_token_id_is_refused(folder, name, value, message):
    edit_json(folder / name, eos_token_id=value)

    refused(folder, f"{folder / name}: {message}")


def test_a_missing_tokenizer_is_found_at_the_start(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "model.safetensors").unlink()

    refused(folder, f"{folder}/tokenizer.json not found; a checkpoint folder needs it")


def test_a_tokenizer_that_is_an_lfs_pointer(folder):
    (folder / "tokenizer.json").write_bytes(LFS_POINTER)

    refused(folder, f"{folder}/tokenizer.json is a Git LFS pointer")


@pytest.mark.parametrize(
    "content", [b"{}", b"{", b"\xff\x00", b'{\n\n"model": 1}', b'{"model": {"type": "None"}}']
)
def test_a_tokenizer_that_the_package_cannot_read(folder, content):
    (folder / "tokenizer.json").write_bytes(content)

    refused(folder, f"{folder}/tokenizer.json is not a tokenizer that the tokenizers package")


def test_a_tokenizer_without_vocabulary(folder):
    (folder / "tokenizer.json").write_bytes(
        b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}'
    )

    refused(folder, f"{folder}/tokenizer.json has an empty vocabulary; save the tokenizer again")


def test_a_vocabulary_beyond_the_embedding_is_refused(folder):
    edit_json(folder / "config.json", vocab_size=4095)

    refused(
        folder,
        f"{folder}/tokenizer.json has token ids up to 4095, config.json an embedding of "
        f"vocab_size 4095; use the tokenizer that the model was trained with",
    )


def test_a_vocabulary_smaller_than_the_embedding_is_fine(folder):
    edit_json(folder / "config.json", vocab_size=4160)

    assert len(tokenizer_of(folder).vocabulary) == 4096


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_a_malformed_companion_is_named(folder, name):
    (folder / name).write_text('{"eos_token": ', "utf-8")

    refused(folder, f"{folder / name}:1: not valid JSON")


@pytest.mark.parametrize("length", [10**30, 1e30, float("inf")])
def test_a_huge_model_max_length_is_harmless(folder, length):
    edit_json(folder / "tokenizer_config.json", model_max_length=length)

    assert tokenizer_of(folder).warnings == ()


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("{{ a }}", "{{ a }}"),
        ([{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "tool", "template": "t"}], None),
        (None, None),
    ],
)
def test_a_chat_template_is_found_in_the_tokenizer_config(folder, declared, expected):
    edit_json(folder / "tokenizer_config.json", chat_template=declared)

    assert tokenizer_of(folder).chat_template == expected


def test_a_chat_template_of_its_own_wins(folder):
    edit_json(folder / "tokenizer_config.json", chat_template="old")
    (folder / "chat_template.jinja").write_text("{{ 'é' }}\n", "utf-8")

    assert tokenizer_of(folder).chat_template == "{{ 'é' }}\n"


def test_a_chat_template_that_is_no_text(folder):
    (folder / "chat_template.jinja").write_bytes(b"\xff")

    refused(folder, f"{folder}/chat_template.jinja is not UTF-8 (invalid start byte); save it")


def test_numbers_count_when_the_checkpoint_samples():
    raw = {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "max_new_tokens": 128, "x": 1}

    assert sampling_defaults(raw) == (
        {"temperature": 0.8, "top_p": 0.95, "max_new_tokens": 128},
        (),
    )
    assert sampling_defaults({"do_sample": True}) == ({"temperature": 1.0}, ())


@pytest.mark.parametrize("do_sample", [False, None])
def test_without_sampling_only_what_greedy_decoding_knows_is_kept(do_sample):
    raw = {"do_sample": do_sample, "top_k": 5, "top_p": 1.0, "repetition_penalty": 1.1}

    defaults, (warning,) = sampling_defaults(raw)

    assert defaults == {"repetition_penalty": 1.1}
    assert warning.startswith("generation_config.json sets top_k without do_sample; decoding is")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "0.7"),
        ("temperature", float("nan")),
        ("temperature", 10**400),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_p", 0),
        ("top_p", 1.01),
        ("min_p", -0.5),
        ("repetition_penalty", 0),
        ("max_new_tokens", 0.5),
    ],
)
def test_a_number_out_of_range_is_ignored_with_a_warning(name, value):
    defaults, warnings = sampling_defaults({"do_sample": True, name: value})

    assert defaults == {"temperature": 1.0}
    assert warnings == (f"generation_config.json: {name} {value!r} is out of range; ignored",)


@pytest.mark.parametrize(
    ("name", "bos", "pad", "eos", "defaults"),
    [
        ("wiola-360m", 1, 0, (2, 7), {}),
        (
            "wiola-13m",
            1,
            3,
            (2,),
            {"temperature": 0.8, "top_p": 0.95, "max_new_tokens": 128},
        ),
    ],
)
def test_published_tokenizers(name, bos, pad, eos, defaults):
    if "WIOLA_TEST_DATA" not in os.environ:
        pytest.skip("WIOLA_TEST_DATA, the folder that holds published/, is not set")
    folder = Path(os.environ["WIOLA_TEST_DATA"]) / "published" / name
    config = read_json_object(folder / "config.json")
    generation = read_optional(folder / "generation_config.json")

    tokenizer = read_tokenizer(folder, config, generation)

    assert (tokenizer.bos_id, tokenizer.adds_bos, tokenizer.pad_id) == (bos, False, pad)
    assert tokenizer.eos_ids("<|end|>") == eos
    assert tokenizer.generation_defaults == defaults
    assert tokenizer.warnings == ()
    assert len(tokenizer.vocabulary) == 32_000


def test_the_tokenizers_own_eos_comes_first_for_templates(folder):
    """transformers gives a template this one as `eos_token`, however many others there are."""
    edit_json(folder / "config.json", eos_token_id=[2, 3])
    edit_json(folder / "tokenizer_config.json", eos_token="<|system|>")

    assert tokenizer_of(folder).eos_ids("<|end|>") == (6, 2, 3, 7)
