"""A decoder as a sequence of layers with explicit state.

Axes: B batch, T new positions, R positions that return logits, V vocabulary, d hidden size.
"""

import abc
import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from wiola_export.families import operators as ops

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


class Matrix(nn.Module):
    """A linear map without bias, weight (out, in): what can be quantized."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        return ops.linear(x, self.weight)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rescaling:
    """Where the features that some matrices read can be scaled without changing the layer.

    Feature i may be multiplied by any 1 / s_i where it is produced, if column i of every reader
    is multiplied by s_i.

    Attributes:
        readers: Parameters (out, in) whose input it is.
        producers: Parameters that are linear in the features along their first axis: a norm's
            weight, or the matrices that make them.
        repeats: Each run of `run` produced features serves that many runs of features of the
            readers, one after the other; 1 where they are the same features.
        run: Features of a run, for repeated ones the size of a head.
    """

    readers: tuple[str, ...]
    producers: tuple[str, ...]
    repeats: int = 1
    run: int = 1


class Layer(nn.Module, abc.ABC):
    """One decoder layer.

    Attributes:
        num_states: How many tensors of state it reads and writes.
        rescalings: Exact freedoms that a quantizer may use; names within the layer.
    """

    num_states: int
    rescalings: tuple[Rescaling, ...] = ()

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
