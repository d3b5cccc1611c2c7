"""Write a checkpoint of a published size with random bfloat16 weights, a few rows at a time."""

import dataclasses
import json
import math
import shutil
import struct
from pathlib import Path

import numpy as np

from wiola_export.families import find_variant
from wiola_export.source import demo_folder
from wiola_export.weights import RandomSource

ROWS = 4096


def write_random_checkpoint(folder: Path, variant: str, layers: int | None = None) -> Path:
    """Write config, tokenizer (the demo's) and one safetensors file; memory stays small.

    `layers` cuts the model: what is in memory at a time does not depend on their number.
    """
    _, config = find_variant(variant)
    if layers:
        config = dataclasses.replace(config, num_hidden_layers=layers)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.to_json(), indent=2))
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(demo_folder() / name, folder)
    shapes = config.tensor_shapes()
    source = RandomSource(shapes, config.initial_values(), 0)
    with (folder / "model.safetensors").open("wb") as file:
        header = json.dumps(_header(shapes)).encode()
        file.write(struct.pack("<Q", len(header)) + header)
        for name, shape in shapes.items():
            rows = shape[0] if shape else 1
            for start in range(0, rows, ROWS):
                values = source.read_rows(name, start, min(start + ROWS, rows))
                file.write(_bfloat16(values).tobytes())
    return folder


def _header(shapes):
    header, offset = {}, 0
    for name, shape in shapes.items():
        stop = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, stop]}
        offset = stop
    return header


def _bfloat16(values):
    """Cut a float32 to its upper half: rounding does not matter for random numbers."""
    return (np.ascontiguousarray(values, "<f4").view("<u4") >> 16).astype("<u2")
