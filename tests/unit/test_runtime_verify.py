"""A damaged or foreign bundle is refused by the name of its file."""

import json
import shutil

import pytest
from support.tiny_bundle import TinyBundle

from wiola_runtime import BundleError, load

GRAPH, WEIGHTS, TOKENIZER = "model.onnx", "model.onnx.data", "tokenizer.json"


@pytest.fixture
def folder(tmp_path):
    return TinyBundle().write(tmp_path / "b")


@pytest.mark.parametrize("name", [GRAPH, WEIGHTS, TOKENIZER])
def test_a_flipped_bit_is_found(folder, name):
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)

    with pytest.raises(BundleError, match=rf"{name} has SHA-256 \w+…, the manifest says"):
        load(folder)


def test_truncated_weights_are_found_by_their_size(folder):
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:-1024])

    with pytest.raises(
        BundleError,
        match=rf"{WEIGHTS} has {len(data) - 1024} bytes, the manifest says {len(data)}; copy",
    ):
        load(folder)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", [GRAPH, WEIGHTS, TOKENIZER])
def test_a_missing_file_is_named(folder, name, verify):
    (folder / name).unlink()

    with pytest.raises(BundleError, match=rf"{name} not found; copy the bundle again"):
        load(folder, verify=verify)


def test_verification_can_be_skipped(folder):
    """Then a harmless change passes."""
    with (folder / TOKENIZER).open("a") as file:
        file.write("\n")

    with load(folder, verify=False) as model:
        assert model.generate("It", max_new_tokens=1).token_ids


@pytest.mark.parametrize("name", ["../model.onnx", "/etc/hostname", "a\\b", ".."])
def test_a_file_name_cannot_leave_the_folder(folder, name):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace(f'"{WEIGHTS}"', f'"{name}"'.replace("\\", "\\\\")))

    with pytest.raises(BundleError, match=r"the manifest names '.*', which is no bare file name"):
        load(folder)


@pytest.mark.parametrize("name", [GRAPH, TOKENIZER])
def test_a_manifest_must_vouch_for_graph_and_tokenizer(folder, name):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace(f'"{name}": {{', '"manifest.json": {'))

    with pytest.raises(BundleError, match=rf"the manifest has no SHA-256 of {name}; export again"):
        load(folder)


def test_a_graph_that_is_none_is_refused_in_one_line(folder):
    """ONNX Runtime's own failure becomes a bundle error."""
    (folder / GRAPH).write_bytes(b"no graph")

    with pytest.raises(BundleError, match=r"onnxruntime 1\.\d+.* refuses .*model\.onnx: .*") as e:
        load(folder, verify=False)

    assert "\n" not in str(e.value)


def test_a_moved_bundle_works_from_any_directory(folder, tmp_path, monkeypatch):
    """Also read-only: the runtime writes nothing."""
    moved = tmp_path / "moved here" / "ünïcode"
    moved.parent.mkdir()
    shutil.move(folder, moved)
    moved.chmod(0o555)
    monkeypatch.chdir(tmp_path)

    with load(moved.relative_to(tmp_path)) as model:
        assert model.generate("It", max_new_tokens=1).token_ids
    moved.chmod(0o755)


def test_weights_that_the_manifest_does_not_list_are_refused(tmp_path):
    folder = TinyBundle().write(tmp_path / "b")
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"][WEIGHTS]
    (folder / "manifest.json").write_text(json.dumps(manifest))

    with pytest.raises(BundleError, match=r"has no SHA-256 of model\.onnx\.data; export again"):
        load(folder)
