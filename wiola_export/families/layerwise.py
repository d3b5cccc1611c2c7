"""Run whole windows through a model whose weights are read one layer at a time.

Axes: W windows, B windows of a group, T tokens of a window, V vocabulary, d hidden size.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wiola_export.families.layered import (
    Carry,
    Layer,
    LayeredModel,
    Matrix,
    State,
    positions_after,
)

ReadWeight = Callable[[str], Tensor]
EmptyStates = Callable[[int], Sequence[Tensor]]


@dataclasses.dataclass(frozen=True, slots=True)
class Hidden:
    """What one layer hands to the next: the stream (B, T, d), and what earlier layers carry on."""

    x: Tensor
    carry: Carry = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLayer:
    """A layer with its weights in memory.

    Attributes:
        prefix: What its parameters' names start with in the checkpoint, without the dot.
        weights: By name within the layer.
        empty_state: Past state of B rows with nothing cached.
    """

    prefix: str
    layer: Layer
    weights: Mapping[str, Tensor]
    empty_state: Callable[[int], State]

    def run(self, hidden: Hidden, weights: Mapping[str, Tensor] | None = None) -> Hidden:
        """Run whole windows, with other weights than its own if given."""
        batch_size, length = hidden.x.shape[:2]
        at = positions_after(torch.zeros(batch_size, dtype=torch.int64), length)
        arguments = (hidden.x, hidden.carry, at, self.empty_state(batch_size))
        chosen = dict(self.weights if weights is None else weights)
        x, carry, _ = torch.func.functional_call(self.layer, chosen, arguments)
        return Hidden(x, carry)

    def full_name(self, name: str) -> str:
        """Return a parameter's name in the checkpoint."""
        return f"{self.prefix}.{name}"


class LayerwiseExecutor:
    """Run whole windows through a model, with the weights of one layer in memory at a time.

    Args:
        model: The model on the meta device.
        read: Returns a parameter by its name in the checkpoint.
        empty_states: Past state of a batch of B rows with nothing cached, in the model's order.
    """

    def __init__(self, model: LayeredModel, read: ReadWeight, empty_states: EmptyStates) -> None:
        self._model = model
        self._read = read
        self._empty_states = empty_states

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self._model.layers())

    # The decorator sets the mode anew at each resumption; a `with` would leave it set in the caller
    # between yields, and for good where two of these are consumed in turn.
    @torch.no_grad()
    def logits(self, windows: NDArray[np.int64], batch: int = 8) -> Iterator[NDArray[np.float32]]:
        """Yield logits (B, T, V) of consecutive groups of `batch` windows (W, T)."""
        groups = [torch.from_numpy(windows[i : i + batch]) for i in range(0, len(windows), batch)]
        weights = self.head_weights()
        hidden = [self.embed(ids, weights) for ids in groups]
        for layer in self.layers():
            for i, state in enumerate(hidden):
                hidden[i] = layer.run(state)
        for state in hidden:
            yield self.head(state, weights).numpy()

    def embed(self, token_ids: Tensor, weights: Mapping[str, Tensor]) -> Hidden:
        """Look up (B, T) token ids, with weights from `head_weights`."""
        return Hidden(self._call(weights, "embed", token_ids))

    def layers(self) -> Iterator[LoadedLayer]:
        """Yield the layers in order, reading the weights of each when its turn comes."""
        return (self._load(index) for index in range(self.num_layers))

    def layers_backward(self) -> Iterator[LoadedLayer]:
        """Yield the layers from the last to the first."""
        return (self._load(index) for index in reversed(range(self.num_layers)))

    def head(self, hidden: Hidden, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the logits (B, T, V) of all positions, with weights from `head_weights`."""
        return self._call(weights, "head", hidden.x, torch.arange(hidden.x.shape[1]))

    def head_reads(self, hidden: Hidden, weights: Mapping[str, Tensor]) -> tuple[str, Tensor]:
        """Return the name of the matrix that makes the logits, and what it reads (B, T, d).

        The logits themselves, the largest tensor of all, are not made.
        """
        outside = self._outside()
        matrices = [(n, m) for n, m in self._model.named_modules() if isinstance(m, Matrix)]
        handles = [
            module.register_forward_pre_hook(_stop_at(f"{name}.weight"))
            for name, module in matrices
            if f"{name}.weight" in outside
        ]
        try:
            self.head(hidden, weights)
        except _Reached as reached:
            return reached.name, reached.x
        finally:
            for handle in handles:
                handle.remove()
        raise TypeError(f"{type(self._model).__name__} makes its logits without a Matrix")

    def head_weights(self) -> Mapping[str, Tensor]:
        """Read the parameters outside the layers."""
        return {name: self._read(name) for name in self._outside()}

    def _outside(self) -> list[str]:
        prefixes = tuple(f"{prefix}." for prefix, _ in self._model.layers())
        return [n for n, _ in self._model.named_parameters() if not n.startswith(prefixes)]

    def _load(self, index: int) -> LoadedLayer:
        layers = self._model.layers()
        prefix, layer = layers[index]
        offset = sum(before.num_states for _, before in layers[:index])
        return LoadedLayer(
            prefix=prefix,
            layer=layer,
            weights={n: self._read(f"{prefix}.{n}") for n, _ in layer.named_parameters()},
            empty_state=self._state_of(offset, layer.num_states),
        )

    def _state_of(self, offset: int, count: int) -> Callable[[int], State]:
        return lambda batch: tuple(self._empty_states(batch))[offset : offset + count]

    def _call(self, weights: Mapping[str, Tensor], method: str, *arguments: Tensor) -> Tensor:
        renamed = {f"model.{name}": weight for name, weight in weights.items()}
        caller = _Method(self._model, method)
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


class _Reached(Exception):  # noqa: N818  no error: the wanted input has been seen
    """Ends a run that has gone far enough."""

    def __init__(self, name: str, x: Tensor) -> None:
        super().__init__(name)
        self.name = name
        self.x = x


def _stop_at(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def hook(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        raise _Reached(name, arguments[0])

    return hook
