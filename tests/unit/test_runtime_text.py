"""Streaming decode, stop strings and the tokenizer's edges."""

import dataclasses
import itertools

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from support.scripted import ScriptedGraph
from support.tiny_bundle import CORPUS, TinyBundle, tokenizer_json, vocab_size
from tokenizers import decoders, models, normalizers, processors

from wiola_runtime import BundleError, GenerationError, Model, Tokenizer
from wiola_runtime.manifest import TokenSpec
from wiola_runtime.text import StopFilter, StreamDecoder

SPECIALS = TokenSpec(bos_id=1, adds_bos=False, eos_ids=(2,), pad_id=0)
TEXTS = ("😀 日本 é", "👨‍👩‍👧", " leading", "a\nb  c ", "\ufffd", "é" * 40, *CORPUS)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(tokenizers.Tokenizer.from_str(tokenizer_json()), SPECIALS)


def streamed(tokenizer, ids):
    decoder = StreamDecoder(tokenizer)
    return [*(decoder.push(token_id) for token_id in ids), decoder.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_the_whole_text(tokenizer, text):
    """Emoji, CJK, spaces and a real replacement character arrive complete and unsplit."""
    pieces = streamed(tokenizer, tokenizer.encode(text))

    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, vocab_size() - 1), max_size=80))
def test_pieces_are_the_full_decode_of_any_ids(tokenizer, ids):
    """Also where the bytes are no UTF-8 at all."""
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


def test_a_character_that_never_ends_is_one_replacement_character(tokenizer):
    """The reply may stop after three of an emoji's four bytes."""
    ids = tokenizer.encode("ab😀")
    while len(tokenizer.decode(ids)) < 3 or tokenizer.decode(ids)[-1] != "\ufffd":
        ids = ids[:-1]

    *pieces, tail = streamed(tokenizer, ids)

    assert ("".join(pieces), tail) == ("ab", "\ufffd")


def test_a_decoder_that_strips_the_first_space_keeps_all_others():
    """SentencePiece style: every word begins with its space, the text's first one goes."""
    vocab = {"<unk>": 0, "▁a": 1, "▁": 2, "b": 3}
    native = tokenizers.Tokenizer(models.Unigram([(piece, 0.0) for piece in vocab], 0))
    native.decoder = decoders.Metaspace()
    tokenizer = Tokenizer(native, SPECIALS)
    ids = [1, 3, 2, 1] * 12

    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)
    assert tokenizer.decode(ids).startswith("ab  a ab")


def cut(stops, pieces):
    """Return (text, whether stopped) after all pieces, checking that nothing is taken back."""
    stop_filter = StopFilter(stops)
    text = "".join(stop_filter.push(piece) for piece in pieces) + stop_filter.flush()
    return text, stop_filter.stopped


@pytest.mark.parametrize("pieces", ["ab END cd", ("ab E", "ND cd"), ("ab END cd",)])
@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        (("END",), ("ab ", True)),
        (("b E",), ("a", True)),
        (("END", "b E"), ("a", True)),
        (("D c", "END"), ("ab ", True)),
        (("EN", "END"), ("ab ", True)),
        (("cde", "x"), ("ab END cd", False)),
        ((), ("ab END cd", False)),
    ],
)
def test_the_text_ends_exactly_before_the_stop(pieces, stops, expected):
    """Wherever the pieces end; an unfinished stop string is given back at the end."""
    assert cut(stops, pieces) == expected


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.sets(st.integers(0, 30)),
)
def test_the_cut_does_not_depend_on_the_pieces(text, stops, cuts):
    """And equals what a search of the whole text finds: the stop that is complete first."""
    edges = [0, *sorted(c for c in cuts if c < len(text)), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    ends = sorted((text.find(s) + len(s), text.find(s)) for s in stops if s in text)

    assert cut(stops, pieces) == ((text[: ends[0][1]], True) if ends else (text, False))


def test_nothing_of_a_possible_stop_leaves_early():
    stop_filter = StopFilter(["<end>"])

    assert [stop_filter.push(p) for p in ("a<", "en", "x<e", "nd", "> b", "c")] == [
        "a", "", "<enx", "", "", "",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["hello", "<bos>hello", ""])
def test_a_text_has_one_beginning(text):
    """A tokenizer that adds the first token meets a text that spells it out."""
    native = tokenizers.Tokenizer.from_str(tokenizer_json())
    native.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 1)]
    )
    tokens = TokenSpec(bos_id=1, adds_bos=True, eos_ids=(2,), pad_id=0)

    ids = Tokenizer(native, tokens).encode(text)

    assert ids[0] == 1
    assert ids.count(1) == 1


def test_special_tokens_have_ids_and_no_text(tokenizer):
    assert tokenizer.special_id("<|end|>") == 4
    assert tokenizer.special_id("It") is None
    assert tokenizer.decode(tokenizer.encode("a<|end|>b")) == "ab"


def test_padding_and_truncation_of_the_file_are_ignored(tmp_path):
    """Settings for training batches would cut or stretch a prompt in silence."""
    native = tokenizers.Tokenizer.from_str(tokenizer_json())
    native.enable_truncation(2)
    native.enable_padding(length=9)
    native.save(str(tmp_path / "tokenizer.json"))

    tokenizer = Tokenizer.read(tmp_path / "tokenizer.json", SPECIALS)

    assert tokenizer.decode(tokenizer.encode(CORPUS[0])) == CORPUS[0]


@pytest.mark.parametrize("content", [b"{}", b"\xff\xfe", b"version https://git-lfs"])
def test_a_broken_tokenizer_file_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)

    with pytest.raises(BundleError, match=r"tokenizer\.json is no tokenizer .*; export again"):
        Tokenizer.read(tmp_path / "tokenizer.json", SPECIALS)


def test_a_normalizer_does_not_disturb_streaming():
    """Lower-casing happens on the way in only."""
    native = tokenizers.Tokenizer.from_str(tokenizer_json())
    native.normalizer = normalizers.Lowercase()
    tokenizer = Tokenizer(native, SPECIALS)

    assert "".join(streamed(tokenizer, tokenizer.encode("É日"))) == "é日"


def test_bytes_that_were_no_utf_8_are_refused(tokenizer):
    with pytest.raises(GenerationError, match="the text is not valid Unicode; give UTF-8 text"):
        tokenizer.encode("a\ud800b")


def test_only_the_beginning_of_a_text_gets_the_first_token():
    """A second turn is the same text, going on."""
    native = tokenizers.Tokenizer.from_str(tokenizer_json())
    native.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 1)]
    )
    tokens = TokenSpec(bos_id=1, adds_bos=True, eos_ids=(2,), pad_id=0)
    manifest = dataclasses.replace(TinyBundle().manifest({}), tokens=tokens)
    graph = ScriptedGraph([9, 10, 11, 12], vocab_size())
    model = Model(manifest, Tokenizer(native, tokens), graph, load_seconds=0.0)
    conversation = model.session()

    conversation.generate("It is", max_new_tokens=1)
    conversation.append(" a")
    conversation.generate(" truth", max_new_tokens=1)

    assert conversation.token_ids[0] == 1
    assert conversation.token_ids.count(1) == 1
