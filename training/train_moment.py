"""Train a small `moment` model on the CPU, and write it as a checkpoint.

The run is a function of its arguments: the same ones give the same weights on the same machine.
It continues where the folder's last state ends.

Axes: B windows of a step, T tokens of a window.
"""

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from corpus import CONTEXT, shuffled_windows, training_ids, validation_windows
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from wiola_export.families.layered import LayeredModel
from wiola_export.families.moment import MomentConfig, build_model

CONFIG = MomentConfig(
    vocab_size=4096,
    hidden_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=320,
    max_position_embeddings=512,
)
BETAS = (0.9, 0.97)
WEIGHT_DECAY = 0.1
CLIP = 1.0
DECAY = 0.3  # of all steps
SAVE_SECONDS = 120
LOG_STEPS = 50


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long to train, and how fast: linear warmup, a constant rate, linear decay to zero.

    Where the decay begins is all that the number of steps decides: a run can be cut short.
    """

    steps: int
    warmup: int
    rate: float

    def at(self, step: int) -> float:
        """Return the learning rate of a step."""
        rise = (step + 1) / self.warmup
        fall = (self.steps - step) / (self.steps * DECAY)
        return self.rate * min(rise, 1.0, fall)


def initialize(model: LayeredModel, seed: int) -> None:
    """Draw weights: matrices keep the size of what they read, updates begin small."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        weight.requires_grad_()
        deviation = 0.7 / math.sqrt(weight.shape[-1])
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            deviation /= math.sqrt(2 * CONFIG.num_hidden_layers)
        elif "embed_tokens" in name or "lm_head" in name:
            deviation = 0.3 if "embed_tokens" in name else 0.02
        with torch.no_grad():
            if weight.ndim == 1:
                weight.fill_(1.0)
            else:
                weight.normal_(0, deviation, generator=generator)


def loss_of(model: LayeredModel, windows: Tensor) -> Tensor:
    """Return the mean cross entropy (nats) of windows (B, T), each seen by itself."""
    batch = len(windows)
    shape = (batch, CONFIG.num_attention_heads, 0, CONFIG.head_dim)
    states = [torch.zeros(shape) for _ in CONFIG.states()]
    positions = torch.arange(windows.shape[1] - 1)
    logits = model(windows[:, :-1], torch.zeros(batch, dtype=torch.int64), positions, states)[0]
    return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def perplexity(model: LayeredModel, windows: NDArray[np.int64]) -> float:
    """Return the perplexity of windows (W, T)."""
    losses = [
        loss_of(model, torch.from_numpy(part)) for part in np.split(windows, len(windows) // 8)
    ]
    return math.exp(torch.stack(losses).mean())


def batches(ids: NDArray[np.int64], size: int, seed: int, first: int) -> Iterator[Tensor]:
    """Yield the windows (B, T) of step `first` and all later ones."""
    per_epoch = (len(ids) - CONTEXT) // CONTEXT // size
    step = first
    while True:
        epoch, start = divmod(step, per_epoch)
        windows = shuffled_windows(ids, seed, epoch)
        for index in range(start, per_epoch):
            yield torch.from_numpy(windows[index * size : (index + 1) * size])
            step += 1


def make_optimizer(model: LayeredModel) -> torch.optim.AdamW:
    """Decay the matrices, not the gains."""
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [w for w in weights if w.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=BETAS)


def save_state(model: LayeredModel, optimizer: torch.optim.AdamW, step: int, folder: Path) -> None:
    """Write what the run needs to continue, and the checkpoint in float16."""
    tensors: dict[str, Tensor] = {}
    for name, weight in model.named_parameters():
        tensors[f"weight.{name}"] = weight.detach()
        for key in ("exp_avg", "exp_avg_sq"):
            tensors[f"{key}.{name}"] = optimizer.state[weight][key]
    _write(tensors, folder / "state.safetensors", {"step": str(step)})
    halves = {n: w.detach().to(torch.float16) for n, w in model.named_parameters()}
    _write(halves, folder / "model.safetensors", {"format": "pt"})
    config = {**CONFIG.to_json(), "eos_token_id": 2, "torch_dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def load_state(model: LayeredModel, optimizer: torch.optim.AdamW, path: Path) -> int:
    """Take up a state; return the number of steps done."""
    with safe_open(path, "pt") as file:
        step = int(file.metadata()["step"])
        for name, weight in model.named_parameters():
            with torch.no_grad():
                weight.copy_(file.get_tensor(f"weight.{name}"))
            moments = {key: file.get_tensor(f"{key}.{name}") for key in ("exp_avg", "exp_avg_sq")}
            optimizer.state[weight] = {"step": torch.tensor(float(step)), **moments}
    return step


def _write(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    partial = path.with_suffix(".partial")
    save_file(dict(tensors), partial, metadata=metadata)
    partial.replace(path)


def train(
    model: LayeredModel, ids: NDArray[np.int64], schedule: Schedule, arguments: argparse.Namespace
) -> None:
    """Run all steps that are left."""
    optimizer = make_optimizer(model)
    state = arguments.out / "state.safetensors"
    first = load_state(model, optimizer, state) if state.exists() else 0
    began = saved = time.monotonic()
    source = batches(ids, arguments.batch, arguments.seed, first)
    running: list[float] = []
    for step, windows in zip(range(first, schedule.steps), source, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = schedule.at(step)
        loss = loss_of(model, windows)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        running.append(loss.item())
        done = step + 1
        if done % LOG_STEPS == 0:
            speed = (done - first) * windows.numel() / (time.monotonic() - began)
            print(f"step {done} loss {np.mean(running):.4f} tokens/s {speed:.0f}", flush=True)
            running = []
        if done == schedule.steps or time.monotonic() - saved > SAVE_SECONDS:
            save_state(model, optimizer, done, arguments.out)
            saved = time.monotonic()


def main() -> None:
    """Train, then print the perplexities of the packaged validation texts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="+", type=Path, help="texts to train on, UTF-8")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--batch", type=int, default=4, help="windows of a step")
    parser.add_argument("--rate", type=float, default=5e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    model = build_model(CONFIG)
    initialize(model, arguments.seed)
    schedule = Schedule(steps=arguments.steps, warmup=arguments.warmup, rate=arguments.rate)
    train(model, training_ids(arguments.texts, tokenizer), schedule, arguments)
    for name, windows in validation_windows(tokenizer).items():
        print(f"{name} {perplexity(model, windows):.2f}")


if __name__ == "__main__":
    main()
