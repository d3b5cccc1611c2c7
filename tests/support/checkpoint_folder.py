"""Checkpoint folders to damage: a copy of the demo, its shards, and hand-made safetensors."""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

DEMO = Path(__file__).parents[2] / "wiola_export" / "demo"
LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    b"size 12345\n"
)


def copy_demo(folder: Path, *, weights: bool = False) -> Path:
    """Copy the demo; its weights are replaced by one small tensor unless wanted."""
    ignored = () if weights else ("model.safetensors",)
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns(*ignored))
    if not weights:
        save_file({"w": np.ones((2, 3), np.float32)}, folder / "model.safetensors")
    return folder


def edit_json(path: Path, **changes: object) -> None:
    """Change keys of a JSON object; None removes a key."""
    raw = json.loads(path.read_text("utf-8")) if path.exists() else {}
    raw.update(changes)
    kept = {key: value for key, value in raw.items() if value is not None}
    path.write_text(json.dumps(kept), "utf-8")


def shard(folder: Path) -> dict[str, str]:
    """Replace model.safetensors by two shards and their index; return its weight_map."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    half = len(names) // 2
    parts = {"model-00001-of-00002.safetensors": names[:half]}
    parts["model-00002-of-00002.safetensors"] = names[half:]
    for file, members in parts.items():
        save_file({name: tensors[name] for name in members}, folder / file)
    weight_map = {name: file for file, members in parts.items() for name in members}
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: object) -> None:
    text = json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text, "utf-8")


def write_raw(path: Path, header: object, data: bytes = b"") -> Path:
    """Write a safetensors file with any header, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
