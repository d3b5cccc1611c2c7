"""A checkpoint folder opens whole, or is refused in one line before anything heavy starts."""

import hashlib
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoint_folder import (
    DEMO,
    LFS_POINTER,
    copy_demo,
    edit_json,
    shard,
    write_index,
)

from wiola_export.checkpoint import open_checkpoint
from wiola_export.errors import CheckpointError


@pytest.fixture
def folder(tmp_path):
    return copy_demo(tmp_path / "model")


def refused(folder, message):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_demo_opens_with_all_its_tensors():
    checkpoint = open_checkpoint(DEMO)

    assert checkpoint.config["hidden_size"] == 192
    assert checkpoint.warnings == ()
    assert len(checkpoint.tensors) == 111
    for name, values in load_file(DEMO / "model.safetensors").items():
        np.testing.assert_array_equal(checkpoint.read(name), values.astype(np.float32))


def test_a_scalar_is_one_row():
    checkpoint = open_checkpoint(DEMO)
    name = "model.layers.0.attn.blend_logit"

    assert checkpoint.read(name).shape == ()
    assert checkpoint.read_rows(name, 0, 1).shape == (1,)
    assert checkpoint.read_rows(name, 0, 1)[0] == checkpoint.read(name)


def test_rows_are_the_callers_own_memory():
    checkpoint = open_checkpoint(DEMO)
    rows = checkpoint.read_rows("model.embed_tokens.weight", 8, 10)
    rows[...] = 0

    assert checkpoint.read_rows("model.embed_tokens.weight", 8, 10).any()


def test_shards_read_as_the_single_file(tmp_path):
    folder = copy_demo(tmp_path / "model", weights=True)
    shard(folder)
    sharded, single = open_checkpoint(folder), open_checkpoint(DEMO)

    assert len({info.path for info in sharded.tensors.values()}) == 2
    assert sharded.tensors.keys() == single.tensors.keys()
    for name in single.tensors:
        np.testing.assert_array_equal(sharded.read(name), single.read(name))


def test_the_hash_is_that_of_config_and_weights_in_order(tmp_path):
    folder = copy_demo(tmp_path / "model", weights=True)
    shard(folder)
    parts = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    expected = hashlib.sha256(b"".join(path.read_bytes() for path in parts)).hexdigest()

    assert open_checkpoint(folder).sha256() == expected


def test_the_hash_tells_configs_apart(folder):
    before = open_checkpoint(folder).sha256()
    edit_json(folder / "config.json", rms_norm_eps=1e-5)

    assert open_checkpoint(folder).sha256() != before


def test_a_folder_that_is_not_there(tmp_path):
    refused(tmp_path / "none", f"{tmp_path}/none not found, expected the folder of a checkpoint")


def test_a_file_in_place_of_the_folder_names_the_folder(folder):
    file = folder / "model.safetensors"

    refused(file, f"{file} is a file, expected the folder of a checkpoint; give {folder}")


def test_a_folder_without_config(folder):
    (folder / "config.json").unlink()

    refused(folder, f"{folder} holds no config.json; is it a checkpoint in the Hugging Face")


def test_a_bundle_is_no_checkpoint(folder):
    (folder / "config.json").rename(folder / "manifest.json")

    refused(folder, f"{folder} is an exported bundle (it has manifest.json); export from the")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n"a": 1,\n"b" 2}', ":3: not valid JSON (Expecting ':' delimiter); correct or"),
        ('["a"]', " holds a JSON list, expected an object; correct or download it again"),
        ("", " is empty (0 bytes); download or copy it again"),
        (LFS_POINTER.decode(), " is a Git LFS pointer, expected the file itself; run `git lfs"),
    ],
)
def test_malformed_json_is_named_by_file_and_line(folder, name, text, message):
    (folder / name).write_text(text, "utf-8")

    refused(folder, f"{folder / name}{message}")


@pytest.mark.parametrize("present", [True, False])
def test_generation_config_may_be_empty_or_absent(folder, present):
    (folder / "generation_config.json").unlink()
    if present:
        (folder / "generation_config.json").write_text("{}", "utf-8")

    assert open_checkpoint(folder).generation_config == {}


def test_a_contradictory_generation_config_is_a_warning(folder):
    edit_json(folder / "generation_config.json", do_sample=False, temperature=0.7)

    (warning,) = open_checkpoint(folder).warnings

    assert warning == (
        "generation_config.json sets temperature without do_sample; "
        "decoding is greedy and they are ignored"
    )


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_a_quantized_config_is_refused(folder, key):
    edit_json(folder / "config.json", **{key: {"quant_method": "gptq"}})

    refused(folder, f"has a {key}: the weights are quantized already; export from the float")


@pytest.mark.parametrize("part", ["qweight", "qzeros", "scales", "g_idx"])
def test_quantized_tensors_are_refused(folder, part):
    save_file({f"layers.0.q.{part}": np.ones(2, np.float16)}, folder / "model.safetensors")

    refused(folder, f"holds layers.0.q.{part}: the weights are quantized already; export from")


class TestShards:
    @pytest.fixture
    def folder(self, tmp_path):
        folder = copy_demo(tmp_path / "model")
        tensors = {name: np.ones(2, np.float32) for name in "abcd"}
        save_file(tensors, folder / "model.safetensors")
        return folder

    def test_a_missing_shard_is_named(self, folder):
        shard(folder)
        (folder / "model-00002-of-00002.safetensors").unlink()

        refused(
            folder,
            f"{folder} lacks 1 of 2 shards (model-00002-of-00002.safetensors); "
            f"download or copy them there",
        )

    def test_a_truncated_shard_is_named(self, folder):
        shard(folder)
        path = folder / "model-00002-of-00002.safetensors"
        path.write_bytes(path.read_bytes()[:-1])

        refused(folder, f"{path} is truncated")

    def test_a_shard_that_is_an_lfs_pointer_is_named(self, folder):
        shard(folder)
        path = folder / "model-00001-of-00002.safetensors"
        path.write_bytes(LFS_POINTER)

        refused(folder, f"{path} is a Git LFS pointer")

    def test_a_tensor_that_its_shard_lacks(self, folder):
        weight_map = shard(folder)
        write_index(folder, weight_map | {"e": weight_map["a"]})

        refused(folder, "model-00001-of-00002.safetensors lacks e, which model.safetensors.index")

    def test_a_tensor_that_the_index_does_not_list(self, folder):
        weight_map = shard(folder)
        del weight_map["d"]
        write_index(folder, weight_map)

        refused(folder, "model-00002-of-00002.safetensors holds d, which model.safetensors.index")

    def test_a_tensor_in_two_shards(self, folder):
        shard(folder)
        extra = {name: np.ones(2, np.float32) for name in "bcd"}
        save_file(extra, folder / "model-00002-of-00002.safetensors")

        refused(folder, "model-00002-of-00002.safetensors holds b, which")

    @pytest.mark.parametrize(
        "shard_name",
        [
            "../x.safetensors",
            "/x.safetensors",
            "a\\x.safetensors",
            "C:x.safetensors",
            "x.bin",
            3,
        ],
    )
    def test_a_shard_name_never_leaves_the_folder(self, folder, shard_name):
        weight_map = shard(folder)
        write_index(folder, weight_map | {"a": shard_name})

        refused(folder, f"a lies in {shard_name!r}, expected the bare name of a .safetensors file")

    @pytest.mark.parametrize("weight_map", [None, {}, ["a"]])
    def test_an_index_without_a_map(self, folder, weight_map):
        shard(folder)
        write_index(folder, weight_map)

        refused(folder, "model.safetensors.index.json has no weight_map of tensor names to shards")

    def test_a_single_file_wins_over_shards_and_the_user_is_told(self, folder):
        shard(folder)
        save_file({"w": np.ones(2, np.float32)}, folder / "model.safetensors")
        checkpoint = open_checkpoint(folder)

        assert checkpoint.tensors.keys() == {"w"}
        (warning,) = checkpoint.warnings
        assert warning.startswith(f"{folder} holds model.safetensors and model.safetensors.index")
        assert warning.endswith("; only model.safetensors is read")


class Canary:
    """Unpickling one touches a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt", "pytorch_model.bin.index.json"],
)
def test_pickles_are_refused_and_never_opened(folder, tmp_path, name):
    canary = tmp_path / "canary"
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Canary(canary)))

    refused(folder, f"{folder} holds only pickled weights ({name}), which can run code")
    assert not canary.exists()
    pickle.loads((folder / name).read_bytes())
    assert canary.exists()


def test_pickles_beside_safetensors_are_left_alone(folder):
    (folder / "pytorch_model.bin").write_bytes(b"never read")

    assert open_checkpoint(folder).tensors.keys() == {"w"}


def test_code_in_the_folder_is_never_imported(folder, tmp_path, monkeypatch):
    canary = tmp_path / "canary"
    code = f"import pathlib; pathlib.Path({str(canary)!r}).touch()"
    for name in ("configuration_wiola", "modeling_wiola", "tokenization_wiola", "conftest"):
        (folder / f"{name}.py").write_text(code, "utf-8")
    edit_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": "tokenization_wiola.T"})
    monkeypatch.chdir(folder)

    assert "auto_map" in open_checkpoint(folder).config
    assert not canary.exists()


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()

    refused(folder, f"{folder} holds no weights; expected model.safetensors or")


def test_shards_without_their_index(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")

    refused(folder, "holds model-00001-of-00002.safetensors but neither model.safetensors nor")


EXPECTED = {f"layer.{i}": (2, 3) for i in range(5)}


class TestCheck:
    def opened(self, tmp_path, tensors):
        folder = copy_demo(tmp_path / "model")
        save_file(tensors, folder / "model.safetensors")
        return open_checkpoint(folder)

    def tensors(self):
        return {name: np.ones(shape, np.float32) for name, shape in EXPECTED.items()}

    def test_the_expected_tensors_pass(self, tmp_path):
        self.opened(tmp_path, self.tensors()).check(EXPECTED)

    def test_an_optional_tensor_may_be_there_or_not(self, tmp_path):
        checkpoint = self.opened(tmp_path, self.tensors())
        checkpoint.check({k: v for k, v in EXPECTED.items() if k != "layer.0"}, {"layer.0"})
        checkpoint.check(EXPECTED, {"lm_head.weight"})

    def test_every_kind_of_fault_is_counted_and_named(self, tmp_path):
        tensors = self.tensors() | {"bias": np.ones(1, np.float32)}
        for i in range(4):
            del tensors[f"layer.{i}"]
        tensors["layer.4"] = np.ones((3, 2), np.float32)
        checkpoint = self.opened(tmp_path, tensors)

        message = (
            f"the weights in {tmp_path}/model are not the model that config.json describes: "
            f"4 missing (layer.0, layer.1, layer.2 and 1 more); 1 unexpected (bias); "
            f"1 of another shape (layer.4 is [3, 2], expected [2, 3]); "
            f"use the config and the weights of one model"
        )
        with pytest.raises(CheckpointError, match=re.escape(message)):
            checkpoint.check(EXPECTED)

    def test_a_tied_copy_must_be_a_copy(self, tmp_path):
        table = np.arange(6000, dtype=np.float32).reshape(3000, 2)
        self.opened(tmp_path / "none", {"embed": table}).check_tied("head", "embed")
        self.opened(tmp_path / "same", {"embed": table, "head": table.copy()}).check_tied(
            "head", "embed"
        )
        other = table.copy()
        other[-1, -1] += 1
        checkpoint = self.opened(tmp_path / "other", {"embed": table, "head": other})

        with pytest.raises(CheckpointError, match=r"head differs from embed, the weight that it"):
            checkpoint.check_tied("head", "embed")

    def test_a_tied_copy_of_another_shape_differs(self, tmp_path):
        checkpoint = self.opened(
            tmp_path,
            {"embed": np.ones((4, 2), np.float32), "head": np.ones((4, 1), np.float32)},
        )

        with pytest.raises(CheckpointError, match="head differs from embed"):
            checkpoint.check_tied("head", "embed")

    def test_a_tensor_that_is_not_there_is_named(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"holds no tensor layer\.9; use the"):
            self.opened(tmp_path, self.tensors()).read("layer.9")


def test_the_reader_needs_neither_torch_nor_onnx():
    program = (
        "import sys, json, wiola_export.checkpoint;"
        "print(json.dumps([m for m in sys.modules if m in ('torch', 'onnx', 'onnxruntime')]))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    assert json.loads(loaded.stdout) == []
