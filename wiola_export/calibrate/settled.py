"""Run a layer again and again while its matrices are rounded, and compute no product twice.

Once the weights that read one input are rounded, what they give is the same in every later run.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from wiola_export.calibrate.hidden import TensorGroups
from wiola_export.calibrate.taps import input_of, matrices
from wiola_export.families.layerwise import Hidden, LoadedLayer


class Settled:
    """The runs of one layer, for groups of windows that come in order each time.

    Args:
        layer: With its weights.
        folder: Takes the products, one file for each group of windows.
        in_memory_bytes: Memory for all products; what is beyond goes to files.
    """

    def __init__(self, layer: LoadedLayer, folder: Path, in_memory_bytes: int) -> None:
        self._layer = layer
        modules = dict(layer.layer.named_modules())
        self._modules = {n: modules[n.removesuffix(".weight")] for n in matrices(layer)}
        each = in_memory_bytes // len(self._modules)
        self._products = {
            name: TensorGroups(folder / f"products-{i}", each)
            for i, name in enumerate(self._modules)
        }

    def input_of(
        self, name: str, group: int, hidden: Hidden, weights: Mapping[str, Tensor]
    ) -> Tensor:
        """Return what a weight reads, (B, …, K); the weights that are reached before are final."""
        with self._remembering(group, keeps=True):
            return input_of(self._layer, name, hidden, weights)

    def run(self, group: int, hidden: Hidden, weights: Mapping[str, Tensor]) -> Hidden:
        """Return what the layer gives with final weights; no later run needs its products."""
        with self._remembering(group, keeps=False):
            return self._layer.run(hidden, weights)

    def clear(self) -> None:
        """Let go of all products and their files."""
        for products in self._products.values():
            products.clear()

    @contextmanager
    def _remembering(self, group: int, *, keeps: bool) -> Iterator[None]:
        """Let every matrix return the product that it has made of this group before, if any."""
        for name, module in self._modules.items():
            products = self._products[name]
            module.forward = _remembered(module.forward, products, group, keeps=keeps)
        try:
            yield
        finally:
            for module in self._modules.values():
                del module.forward


def _remembered(
    forward: Callable[[Tensor], Tensor], products: TensorGroups, group: int, *, keeps: bool
) -> Callable[[Tensor], Tensor]:
    def recall(x: Tensor) -> Tensor:
        if group < len(products):
            return products[group][0]
        product = forward(x)
        if keeps:
            products.append((product,))
        return product

    return recall
