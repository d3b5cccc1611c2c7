"""What decoders have in common around their layers: embedding, last norm, head.

Axes: B batch, T new positions, R positions that return logits, V vocabulary, d hidden size.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from wiola_export.families import operators as ops
from wiola_export.families.layered import Layer, LayeredModel, Matrix


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned gain."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, d) to (…, d)."""
        return ops.rms_norm(x, self.weight, self.epsilon)


class _Body(nn.Module):
    """Holds the parameters under the prefix `model.`."""

    def __init__(
        self, table: tuple[int, int], layers: Iterable[Layer], norm: tuple[str, nn.Module]
    ) -> None:
        super().__init__()
        self.embed_tokens = Matrix(*table)
        self.layers = nn.ModuleList(layers)
        self.add_module(*norm)


class Decoder(LayeredModel):
    """The whole model; `lm_head` exists only where the embedding is not tied.

    Args:
        table: Rows and columns (V, d) of the embedding, and of a head of its own.
        layers: All of them, in order.
        norm: Name and module of the norm behind the last layer.
        tied: Whether the embedding is the head too.
    """

    def __init__(
        self,
        table: tuple[int, int],
        layers: Iterable[Layer],
        norm: tuple[str, nn.Module],
        *,
        tied: bool,
    ) -> None:
        super().__init__()
        self.model = _Body(table, layers, norm)
        if not tied:
            self.lm_head = Matrix(*table)
        self._norm, self._tied = norm[0], tied

    def embed(self, input_ids: Tensor) -> Tensor:
        """Look up (B, T) token ids."""
        return functional.embedding(input_ids, self.model.embed_tokens.weight)

    def layers(self) -> Sequence[tuple[str, Layer]]:
        """Return the layers with their parameter prefixes."""
        layers = cast("Iterable[Layer]", self.model.layers)
        return [(f"model.layers.{i}", layer) for i, layer in enumerate(layers)]

    def head(self, x: Tensor, output_positions: Tensor) -> Tensor:
        """Norm the wanted positions and project them on the vocabulary."""
        normed = self.model.get_submodule(self._norm)(x)
        chosen = torch.index_select(normed, 1, output_positions)
        table = self.model.embed_tokens if self._tied else self.lm_head
        logits: Tensor = table(chosen)
        return logits
