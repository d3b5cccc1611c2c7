"""See what the matrices of a layer read, without the layer knowing.

Axes: B windows of a group, T tokens of a window, K features.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from wiola_export.families.layered import Matrix
from wiola_export.families.layerwise import Hidden, LoadedLayer

Stage = tuple[str, ...]


class _Reached(Exception):  # noqa: N818  no error: the wanted input has been seen
    """Ends a run that has gone far enough."""


def stages(layer: LoadedLayer, hidden: Hidden) -> list[Stage]:
    """Group the weights of a layer by the input that they read, in the order of execution.

    Args:
        layer: With its weights.
        hidden: Any hidden states to run it on.

    Returns:
        Parameter names within the layer, those of one group reading the same tensor.
    """
    seen: dict[int, tuple[Tensor, list[str]]] = {}  # holds the tensors, so that ids stay unique

    def note(name: str, x: Tensor) -> None:
        seen.setdefault(id(x), (x, []))[1].append(name)

    with _taps(layer, dict.fromkeys(matrices(layer), note)):
        layer.run(hidden)
    return [tuple(names) for _, names in seen.values()]


def matrices(layer: LoadedLayer) -> list[str]:
    """Return the names of the weights that a quantizer may change, within the layer."""
    modules = layer.layer.named_modules()
    return [f"{name}.weight" for name, module in modules if isinstance(module, Matrix)]


def input_of(
    layer: LoadedLayer, name: str, hidden: Hidden, weights: Mapping[str, Tensor]
) -> Tensor:
    """Run a layer until it reaches a weight, and return what that reads, (B, …, K)."""
    found: list[Tensor] = []

    def stop(_: str, x: Tensor) -> None:
        found.append(x)
        raise _Reached

    with _taps(layer, {name: stop}), contextlib.suppress(_Reached):
        layer.run(hidden, weights)
    return found[0]


def inputs_of(
    layer: LoadedLayer, groups: Sequence[Stage], hidden: Hidden, weights: Mapping[str, Tensor]
) -> dict[Stage, Tensor]:
    """Run a layer, and return what each group of weights reads, (B, …, K)."""
    return run_tapped(layer, groups, hidden, weights)[1]


def run_tapped(
    layer: LoadedLayer, groups: Sequence[Stage], hidden: Hidden, weights: Mapping[str, Tensor]
) -> tuple[Hidden, dict[Stage, Tensor]]:
    """Run a layer; return what it gives, and what each group of weights reads, (B, …, K)."""
    found: dict[str, Tensor] = {}
    with _taps(layer, {group[0]: found.__setitem__ for group in groups}):
        result = layer.run(hidden, weights)
    return result, {group: found[group[0]] for group in groups}


@contextlib.contextmanager
def _taps(layer: LoadedLayer, taps: Mapping[str, Any]) -> Iterator[None]:
    modules = dict(layer.layer.named_modules())
    handles = [
        modules[name.removesuffix(".weight")].register_forward_pre_hook(_hook(name, tap))
        for name, tap in taps.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(name: str, tap: Any) -> Any:  # noqa: ANN401  torch's own types of hooks are Any
    def hook(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        tap(name, arguments[0])

    return hook
