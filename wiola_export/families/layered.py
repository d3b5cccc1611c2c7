"""A decoder as a sequence of layers with explicit state, and how to run it layer by layer.

Axes: B batch, T new positions, R positions that return logits, V vocabulary, d hidden size.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Carry = tuple[Tensor, ...]
State = tuple[Tensor, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Positions:
    """Where the new tokens stand: absolute positions (B, T) and 1 / (position + 1), (B, T, 1)."""

    index: Tensor
    inverse_counts: Tensor


def positions_after(past_lengths: Tensor, count: int | torch.SymInt) -> Positions:
    """Place `count` new tokens behind the cached ones of each row."""
    new = torch.arange(count, device=past_lengths.device)  # type: ignore[arg-type]
    index = past_lengths[:, None] + new[None, :]
    return Positions(index, 1.0 / (index + 1).to(torch.float32)[..., None])


class Layer(nn.Module, abc.ABC):
    """One decoder layer.

    Attributes:
        num_states: How many tensors of state it reads and writes.
    """

    num_states: int

    @abc.abstractmethod
    def forward(
        self, x: Tensor, carry: Carry, at: Positions, past: State
    ) -> tuple[Tensor, Carry, State]:
        """Map (B, T, d), what earlier layers hand on, and past state to the next ones."""


class LayeredModel(nn.Module, abc.ABC):
    """Embedding, layers, head; what a step needs of the past is an argument and a result."""

    @abc.abstractmethod
    def embed(self, input_ids: Tensor) -> Tensor:
        """Map token ids (B, T) to (B, T, d)."""

    @abc.abstractmethod
    def layers(self) -> Sequence[tuple[str, Layer]]:
        """Return every layer with the prefix of its parameter names, in order."""

    @abc.abstractmethod
    def head(self, x: Tensor, output_positions: Tensor) -> Tensor:
        """Map (B, T, d) to the logits (B, R, V) of the wanted positions."""

    def forward(
        self,
        input_ids: Tensor,
        past_lengths: Tensor,
        output_positions: Tensor,
        states: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        """Run T new tokens; return logits (B, R, V) and the new states in the order given."""
        at = positions_after(past_lengths, input_ids.shape[1])
        x, carry, rest = self.embed(input_ids), (), tuple(states)
        new: list[Tensor] = []
        for _, layer in self.layers():
            past, rest = rest[: layer.num_states], rest[layer.num_states :]
            x, carry, present = layer(x, carry, at, past)
            new.extend(present)
        return (self.head(x, output_positions), *new)


class LayerwiseExecutor:
    """Run whole windows through a model whose weights are read one layer at a time.

    Args:
        model: The model on the meta device.
        read: Returns a parameter by its name in the checkpoint.
        empty_states: Past state of a batch of B rows with nothing cached, in the model's order.
    """

    def __init__(
        self,
        model: LayeredModel,
        read: Callable[[str], Tensor],
        empty_states: Callable[[int], Sequence[Tensor]],
    ) -> None:
        self._model = model
        self._read = read
        self._empty_states = empty_states

    def logits(self, windows: NDArray[np.int64], batch: int = 8) -> Iterator[NDArray[np.float32]]:
        """Yield logits (B, T, V) of consecutive groups of `batch` windows (W, T)."""
        groups = [torch.from_numpy(windows[i : i + batch]) for i in range(0, len(windows), batch)]
        with torch.no_grad():
            ends = self._parameters_outside_layers()
            hidden = [self._call(self._model, ends, "embed", ids) for ids in groups]
            for x in self._through_layers(hidden, windows.shape[1]):
                everything = torch.arange(windows.shape[1])
                yield self._call(self._model, ends, "head", x, everything).numpy()

    def _through_layers(self, hidden: list[Tensor], length: int) -> list[Tensor]:
        carries: list[Carry] = [()] * len(hidden)
        offset = 0
        for prefix, layer in self._model.layers():
            weights = {n: self._read(f"{prefix}.{n}") for n, _ in layer.named_parameters()}
            for i, x in enumerate(hidden):
                empty = tuple(self._empty_states(len(x)))[offset : offset + layer.num_states]
                at = positions_after(torch.zeros(len(x), dtype=torch.int64), length)
                arguments = (x, carries[i], at, empty)
                hidden[i], carries[i], _ = torch.func.functional_call(layer, weights, arguments)
            offset += layer.num_states
        return hidden

    def _parameters_outside_layers(self) -> dict[str, Tensor]:
        prefixes = tuple(f"{prefix}." for prefix, _ in self._model.layers())
        names = (n for n, _ in self._model.named_parameters() if not n.startswith(prefixes))
        return {name: self._read(name) for name in names}

    def _call(
        self, model: LayeredModel, weights: dict[str, Tensor], method: str, *arguments: Tensor
    ) -> Tensor:
        renamed = {f"model.{name}": weight for name, weight in weights.items()}
        caller = _Method(model, method)
        result: Tensor = torch.func.functional_call(caller, renamed, arguments)
        return result


class _Method(nn.Module):
    """Makes one method of a model callable as a module, as `functional_call` wants it."""

    def __init__(self, model: LayeredModel, method: str) -> None:
        super().__init__()
        self.model = model
        self._method = method

    def forward(self, *arguments: Tensor) -> Tensor:
        result: Tensor = getattr(self.model, self._method)(*arguments)
        return result
