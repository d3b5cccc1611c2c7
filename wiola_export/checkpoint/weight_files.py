"""Find the weights of a checkpoint folder: one safetensors file, or shards and their index."""

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

from wiola_export.checkpoint.safetensors_file import TensorInfo, read_header
from wiola_export.checkpoint.source_file import read_json_object
from wiola_export.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_PICKLES = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_QUANTIZED = ("qweight", "qzeros", "zeros", "scales", "weight_scale", "g_idx", "absmax")


def find_tensors(folder: Path) -> dict[str, TensorInfo]:
    """List every tensor of a checkpoint by name; reads headers only.

    Raises:
        CheckpointError: There are no safetensors, a shard is missing or damaged, shards and
            index disagree, or the weights are quantized already.
    """
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.is_file():
        tensors = read_header(single)
    elif index.is_file():
        tensors = _read_shards(folder, _weight_map(index))
    else:
        raise CheckpointError(_explain_absence(folder))
    for name in tensors:
        if name.rpartition(".")[2] in _QUANTIZED:
            raise CheckpointError(
                f"{tensors[name].path} holds {name}: the weights are quantized already; "
                f"export from the float checkpoint"
            )
    return tensors


def doubts_about_weights(folder: Path) -> tuple[str, ...]:
    """Say which of two sets of weights is read, where a folder holds both."""
    if (folder / SINGLE_FILE).is_file() and (folder / INDEX_FILE).is_file():
        return (f"{folder} holds {SINGLE_FILE} and {INDEX_FILE}; only {SINGLE_FILE} is read",)
    return ()


def name_some(names: Iterable[str], limit: int = 3) -> str:
    """Join the first names in order and count the rest."""
    ordered = sorted(names)
    rest = len(ordered) - limit
    return ", ".join(ordered[:limit]) + (f" and {rest} more" if rest > 0 else "")


def _weight_map(index: Path) -> dict[str, str]:
    """Return tensor name to shard file name."""
    raw = read_json_object(index).get("weight_map")
    if not isinstance(raw, dict) or not raw:
        raise CheckpointError(
            f"{index} has no weight_map of tensor names to shards; download it again"
        )
    for name, shard in raw.items():
        if not isinstance(shard, str) or not _is_bare_name(shard):
            raise CheckpointError(
                f"{index}: {name} lies in {shard!r}, expected the bare name of a .safetensors "
                f"file beside the index; download it again"
            )
    return raw


def _is_bare_name(shard: str) -> bool:
    # Both rules on every system: a folder made on one must not reach out on the other.
    parts = (PurePosixPath(shard).parts, PureWindowsPath(shard).parts)
    return shard.endswith(".safetensors") and parts == ((shard,), (shard,))


def _read_shards(folder: Path, weight_map: Mapping[str, str]) -> dict[str, TensorInfo]:
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of {len(shards)} shards ({name_some(missing)}); "
            f"download or copy them there"
        )
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        found = read_header(folder / shard)
        listed = {name for name, home in weight_map.items() if home == shard}
        _compare(folder / shard, found.keys(), listed)
        tensors.update(found)
    return tensors


def _compare(shard: Path, found: Iterable[str], listed: set[str]) -> None:
    absent, unlisted = listed.difference(found), set(found).difference(listed)
    if absent:
        raise CheckpointError(
            f"{shard} lacks {name_some(absent)}, which {INDEX_FILE} places there; "
            f"download the shard again"
        )
    if unlisted:
        raise CheckpointError(
            f"{shard} holds {name_some(unlisted)}, which {INDEX_FILE} does not place there; "
            f"download the index again"
        )


def _explain_absence(folder: Path) -> str:
    pickles = {path.name for pattern in _PICKLES for path in folder.glob(pattern)}
    others = {path.name for path in folder.glob("*.safetensors")}
    if others:
        return (
            f"{folder} holds {name_some(others)} but neither {SINGLE_FILE} nor {INDEX_FILE}; "
            f"rename a single file, or download the index"
        )
    if pickles:
        return (
            f"{folder} holds only pickled weights ({name_some(pickles)}), which can run code "
            f"when they are opened; only safetensors are read, convert weights that you trust "
            f"with save_pretrained(folder, safe_serialization=True)"
        )
    return f"{folder} holds no weights; expected {SINGLE_FILE} or {INDEX_FILE}, copy them there"
