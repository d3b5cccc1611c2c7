"""The manifest: what is written is read back, and every fault is named with its place."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_bundle import TinyBundle

from wiola_runtime import BundleError, Manifest
from wiola_runtime import manifest as contract

GOOD = json.loads(TinyBundle().manifest({}).to_json())
NAMES = st.text(min_size=1, max_size=6)
SIZES = st.integers(0, 2**40)
NUMBERS = st.floats(allow_nan=False)
AXES = st.lists(st.integers(0, 99) | st.sampled_from("BTRCPS"), max_size=4).map(tuple)


def tuples(strategy):
    return st.lists(strategy, max_size=3).map(tuple)


def records(kind, **fields):
    """Build a manifest record; what is not given follows from the field's type."""
    return st.builds(kind, **fields)


TENSORS = records(contract.TensorSpec, name=NAMES, axes=AXES)
STATES = records(contract.StateSpec, past=NAMES, present=NAMES, axes=AXES)
GOLDEN = records(
    contract.GoldenLogits, position=SIZES, token_ids=tuples(SIZES), values=tuples(NUMBERS)
)
SELF_TESTS = records(
    contract.SelfTest,
    prompt_ids=tuples(SIZES),
    token_ids=tuples(SIZES),
    logits=tuples(GOLDEN),
    tolerance=NUMBERS,
)
QUANTIZED = records(
    contract.QuantizedTensor, name=NAMES, sources=tuples(NAMES), shape=tuples(SIZES), note=NAMES
)
QUANTIZATION = records(
    contract.QuantizationSpec,
    scheme=NAMES,
    bits=SIZES,
    block_size=SIZES,
    smoothing=st.none() | NUMBERS,
    tensors=tuples(QUANTIZED),
)
CHATS = records(
    contract.ChatSpec,
    template=st.none() | NAMES,
    roles=st.dictionaries(NAMES, NAMES, max_size=3),
    turn_end=st.none() | NAMES,
)
MANIFESTS = records(
    Manifest,
    format_version=st.just(contract.FORMAT_VERSION),
    variant=st.none() | NAMES,
    inputs=tuples(TENSORS),
    outputs=tuples(TENSORS),
    states=tuples(STATES),
    chat=st.none() | CHATS,
    generation_defaults=st.dictionaries(NAMES, NUMBERS, max_size=3),
    quantization=QUANTIZATION,
    self_test=st.none() | SELF_TESTS,
    producer=st.dictionaries(NAMES, NAMES, max_size=3),
    files=st.dictionaries(NAMES, st.builds(contract.FileSpec), max_size=3),
)


@given(manifest=MANIFESTS)
def test_what_is_written_is_what_is_read(tmp_path_factory, manifest):
    """And the same manifest gives the same bytes."""
    folder = tmp_path_factory.mktemp("manifest")
    (folder / "manifest.json").write_text(manifest.to_json(), encoding="utf-8")

    again = Manifest.read(folder)

    assert again == manifest
    assert again.to_json() == manifest.to_json()


def changed(path, value):
    """Return a good manifest with one value replaced."""
    raw = json.loads(json.dumps(GOOD))
    *way, last = path
    place = raw
    for key in way:
        place = place[key]
    place[last] = value
    return raw


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["precision"], "int3", r":precision: found 'int3', expected 'fp32' or 'fp16' or "),
        (["context_length"], "9", r":context_length: found '9', expected int; export again"),
        (["context_length"], True, r":context_length: found True, expected int"),
        (["name"], 3, r":name: found 3, expected str"),
        (["variant"], 3, r":variant: found 3, expected str"),
        (["inputs"], {}, r":inputs: found {}, expected a list"),
        (["inputs", 1, "role"], "x", r":inputs\[1\]:role: found 'x', expected 'token_ids' or"),
        (["states", 0, "axes", 0], None, r":states\[0\]:axes\[0\]: found None, expected int"),
        (["tokens"], [], r":tokens: found \[\], expected an object"),
        (["tokens", "eos_ids"], 2, r":tokens:eos_ids: found 2, expected a list"),
        (["tokens", "adds_bos"], 0, r":tokens:adds_bos: found 0, expected bool"),
        (["files"], [], r":files: found \[\], expected an object"),
        (["files", "a"], 1, r":files\.a: found 1, expected an object"),
        (
            ["generation_defaults", "t"],
            "1",
            r":generation_defaults\.t: found '1', expected float",
        ),
        (["generation_defaults", "t"], 10**400, r":generation_defaults\.t: found 1000"),
        (["surprise"], 1, r"manifest\.json: missing keys \[\], unknown keys \['surprise'\]"),
        (["graph"], {}, r":graph: missing keys \['domains', 'file', .*\], unknown keys \[\]"),
        (["format_version"], 2, r"bundle format 2 is newer .* \(<= 1\); upgrade wiola-runtime"),
        (["format_version"], "1", r"has no format_version; is .* an exported bundle\?"),
    ],
)
def test_a_fault_is_named_with_its_place(tmp_path, path, value, message):
    (tmp_path / "manifest.json").write_text(json.dumps(changed(path, value)))

    with pytest.raises(BundleError, match=message):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"is not readable JSON \(.*line 1.*\); export again"),
        (b"\xff", r"is not readable JSON \(.*\); export again"),
        (b"[" * 100_000, r"is not readable JSON \(.*\); export again"),
        (b'{"format_version": 1, "name": "\\ud800"}', r"is not readable JSON \('utf-8' codec"),
        (b"[]", r"has no format_version; is .* an exported bundle\?"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path, content, message):
    (tmp_path / "manifest.json").write_bytes(content)

    with pytest.raises(BundleError, match=message):
        Manifest.read(tmp_path)


def test_a_folder_without_manifest_is_no_bundle(tmp_path):
    with pytest.raises(BundleError, match=r"manifest\.json not found; is .* an exported bundle"):
        Manifest.read(tmp_path)


def test_roles_find_their_tensors():
    manifest = TinyBundle().manifest({})

    assert manifest.name_of("past_lengths") == "lengths"
    assert manifest.name_of("logits") == "scores"
    with pytest.raises(BundleError, match=r"lists no tensor with role 'logits'; export again"):
        dataclasses.replace(manifest, outputs=()).name_of("logits")
