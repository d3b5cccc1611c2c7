"""Open a checkpoint folder: config, tokenizer and weights, checked before any heavy work.

A folder in the layout of Hugging Face: config.json, tokenizer.json and safetensors. Code and
pickles that lie beside them are never opened.
"""

import dataclasses
import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wiola_export.checkpoint.safetensors_file import TensorInfo, read_rows
from wiola_export.checkpoint.source_file import check_content, read_json_object, read_range
from wiola_export.checkpoint.tokenizer_files import TokenizerFiles, read_optional, read_tokenizer
from wiola_export.checkpoint.weight_files import doubts_about_weights, find_tensors, name_some
from wiola_export.errors import CheckpointError
from wiola_runtime import manifest

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"

_HASH_BLOCK_BYTES = 16 * 1024 * 1024
_COMPARED_ROWS = 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose files are all there and readable.

    Attributes:
        config: config.json as it is.
        generation_config: generation_config.json as it is, empty where it is absent.
        tensors: Place, type and shape of every tensor by name.
        warnings: What a user should see; none of it stops an export.
    """

    folder: Path
    config: Mapping[str, object]
    generation_config: Mapping[str, object]
    tokenizer: TokenizerFiles
    tensors: Mapping[str, TensorInfo]
    warnings: tuple[str, ...]

    def check(
        self, expected: Mapping[str, tuple[int, ...]], optional: Collection[str] = ()
    ) -> None:
        """Compare names and shapes with what the config describes; `optional` may be there.

        Raises:
            CheckpointError: Tensors are missing, unexpected, or of another shape.
        """
        found = self.tensors
        missing = sorted(expected.keys() - found.keys())
        extra = sorted(found.keys() - expected.keys() - set(optional))
        misshapen = sorted(
            f"{name} is {list(found[name].shape)}, expected {list(shape)}"
            for name, shape in expected.items()
            if name in found and found[name].shape != shape
        )
        faults = {"missing": missing, "unexpected": extra, "of another shape": misshapen}
        listed = [f"{len(f)} {what} ({name_some(f)})" for what, f in faults.items() if f]
        if listed:
            raise CheckpointError(
                f"the weights in {self.folder} are not the model that {CONFIG_FILE} describes: "
                f"{'; '.join(listed)}; use the config and the weights of one model"
            )

    def check_tied(self, copy: str, original: str) -> None:
        """Compare a tensor that a tied model may have stored twice; absent is fine.

        Raises:
            CheckpointError: The copy is there and holds other numbers.
        """
        if copy not in self.tensors:
            return
        shapes = self.tensors[copy].shape, self.tensors[original].shape
        rows = self.tensors[original].rows
        starts = range(0, rows, _COMPARED_ROWS)
        stops = [min(start + _COMPARED_ROWS, rows) for start in starts]
        if shapes[0] != shapes[1] or not all(
            np.array_equal(self.read_rows(copy, a, b), self.read_rows(original, a, b))
            for a, b in zip(starts, stops, strict=True)
        ):
            raise CheckpointError(
                f"{self.folder}: {copy} differs from {original}, the weight that it is tied "
                f"to; set tie_word_embeddings to false if the model was trained so"
            )

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Read rows [start, stop) along axis 0 as float32; a scalar is one row.

        Returns:
            Array of shape (stop - start, *shape[1:]), in fresh memory.

        Raises:
            CheckpointError: There is no such tensor, it cannot be read, or it is not finite.
        """
        return read_rows(self._info(name), start, stop)

    def read(self, name: str) -> NDArray[np.float32]:
        """Read a whole tensor as float32, in its own shape.

        Raises:
            CheckpointError: As for `read_rows`.
        """
        info = self._info(name)
        return read_rows(info, 0, info.rows).reshape(info.shape)

    def sha256(self) -> str:
        """Hash config.json, then the weight files by ascending name, as one stream.

        `cat config.json *.safetensors | sha256sum` gives the same on a folder of just these.
        """
        digest = hashlib.sha256()
        shards = sorted({info.path for info in self.tensors.values()})
        for path in (self.folder / CONFIG_FILE, *shards):
            for start in range(0, check_content(path), _HASH_BLOCK_BYTES):
                digest.update(read_range(path, start, _HASH_BLOCK_BYTES))
        return digest.hexdigest()

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise CheckpointError(
                f"{self.folder} holds no tensor {name}; use the weights that belong to its "
                f"{CONFIG_FILE}"
            )
        return self.tensors[name]


def open_checkpoint(folder: Path, *, tokenizer_folder: Path | None = None) -> Checkpoint:
    """Open a checkpoint folder; reads every file but the tensors themselves.

    Args:
        folder: In the layout of Hugging Face.
        tokenizer_folder: Where the tokenizer's files are, if not beside the weights.

    Raises:
        CheckpointError: A file is absent, damaged, quantized, pickled, or contradicts another.
    """
    _check_folder(folder)
    config = read_json_object(folder / CONFIG_FILE)
    for key in ("quantization_config", "compression_config"):
        if config.get(key):
            raise CheckpointError(
                f"{folder / CONFIG_FILE} has a {key}: the weights are quantized already; "
                f"export from the float checkpoint"
            )
    generation_config = read_optional(folder / GENERATION_FILE)
    tokenizer = read_tokenizer(tokenizer_folder or folder, config, generation_config)
    return Checkpoint(
        folder=folder,
        config=config,
        generation_config=generation_config,
        tokenizer=tokenizer,
        tensors=find_tensors(folder),
        warnings=(*tokenizer.warnings, *doubts_about_weights(folder)),
    )


def _check_folder(folder: Path) -> None:
    if folder.is_file():
        raise CheckpointError(
            f"{folder} is a file, expected the folder of a checkpoint; give {folder.parent}"
        )
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} not found, expected the folder of a checkpoint; check the path"
        )
    if (folder / CONFIG_FILE).exists():
        return
    if (folder / manifest.FILE_NAME).exists():
        raise CheckpointError(
            f"{folder} is an exported bundle (it has {manifest.FILE_NAME}); "
            f"export from the float checkpoint"
        )
    raise CheckpointError(
        f"{folder} holds no {CONFIG_FILE}; is it a checkpoint in the Hugging Face layout?"
    )
