"""A checkpoint that computes what the demo does, with activations that are hard to round."""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from support.checkpoint_folder import DEMO

CHANNEL = 5
READERS = {
    "input_norm": ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.gate_proj"),
    "post_attn_norm": ("ffn.gate_a", "ffn.up_a", "ffn.up_b"),
}


def write_outliers(folder: Path, factor: float, channel: int = CHANNEL) -> Path:
    """Make one channel of every normed input `factor` times as large, and its readers as deaf.

    Weights are float32, so that the columns keep their precision.
    """
    shutil.copytree(DEMO, folder)
    tensors = load_file(DEMO / "model.safetensors")
    weights = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    config = json.loads((DEMO / "config.json").read_text())
    for layer in range(config["num_hidden_layers"]):
        for norm, readers in READERS.items():
            weights[f"model.layers.{layer}.{norm}.weight"][channel] *= factor
            for reader in readers:
                weights[f"model.layers.{layer}.{reader}.weight"][:, channel] /= factor
    save_file(weights, folder / "model.safetensors")
    return folder
