"""Weights that compute the same, with activations that are hard to round."""

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


def disturbed(tensors, layers: int, factor: float, channel: int = CHANNEL):
    """Return float32 weights in which one channel of every normed input is larger.

    What reads it is as much smaller: the model computes the same.
    """
    weights = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    for layer in range(layers):
        for norm, readers in READERS.items():
            weights[f"model.layers.{layer}.{norm}.weight"][channel] *= factor
            for reader in readers:
                weights[f"model.layers.{layer}.{reader}.weight"][:, channel] /= factor
    return weights


def write_outliers(folder: Path, factor: float) -> Path:
    """Write the demo with such a channel."""
    shutil.copytree(DEMO, folder)
    layers = json.loads((DEMO / "config.json").read_text())["num_hidden_layers"]
    weights = disturbed(load_file(DEMO / "model.safetensors"), layers, factor)
    save_file(weights, folder / "model.safetensors")
    return folder
