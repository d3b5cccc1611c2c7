"""Round the table that makes logits on what it reads.

Axes: B windows of a group, T tokens of a window, V vocabulary, d hidden size.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from wiola_export.calibrate.gptq import corrected, gptq, metric_of
from wiola_export.calibrate.hidden import HiddenStates
from wiola_export.calibrate.layer import Streams
from wiola_export.calibrate.moments import Moments
from wiola_export.families.layerwise import LayerwiseExecutor
from wiola_export.options import Method
from wiola_export.progress import Progress
from wiola_export.quantize.formats import Blocks
from wiola_export.quantize.policy import Policy, Role
from wiola_export.quantize.rounding import round_matrix
from wiola_export.quantize.spool import Spool

# A tied table is looked up as well as multiplied with. Nearest rounding is best for the one, GPTQ
# for the other: so much of the mean moment on the diagonal lies between them
# (docs/decisions/0007-calibration.md).
LOOKUP_SHARE = 1.0
# Beyond so many bits nearest rounding of a tied table loses too little to run the float model for.
COARSE_BITS = 4
MATRIX_AXES = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TableQuantizer:
    """How embedding and head are rounded.

    Attributes:
        method: `gptq` moves rounding errors to later features; else tables are left to nearest.
        policy: Which weight is stored how.
        spool: Takes rounded tables.
        folder: Takes the hidden states of the float model.
    """

    executor: LayerwiseExecutor
    method: Method
    policy: Policy
    spool: Spool
    folder: Path

    def round_tied(self, groups: Sequence[Tensor], progress: Progress) -> None:
        """Round a coarse table that is embedding and head at once, on what the float head reads.

        It must be known before the layers are: they make good what its lookups lose.

        Args:
            groups: Token ids (B, T) of each group.
            progress: Is told of the layers of the float model.
        """
        weights = self.executor.head_weights()
        name, form = self._head(weights, groups[0])
        if form is None or not _is_tied(weights) or form.bits > COARSE_BITS:
            return
        progress.stage("running the float model")
        embedded = (self.executor.embed(ids, weights) for ids in groups)
        states = HiddenStates(embedded, self.folder / "float")
        for layer in progress.track(self.executor.layers(), self.executor.num_layers):
            for index in range(len(states)):
                states[index] = layer.run(states[index])
        moments = self._moments(weights, states, states).inputs
        moments.diagonal().add_(LOOKUP_SHARE * moments.diagonal().mean())
        self.spool.put(name, gptq(weights[name], metric_of(moments), form), form)

    def round_untied(self, groups: Sequence[Tensor], streams: Streams) -> None:
        """Round a head of its own, on what the quantized model gives behind its layers."""
        weights = self.executor.head_weights()
        name, form = self._head(weights, groups[0])
        if form is None or _is_tied(weights):
            return
        moments = self._moments(weights, streams.quantized, streams.original)
        (target,) = corrected([weights[name]], moments)
        self.spool.put(name, gptq(target, metric_of(moments.inputs), form), form)

    def stored(self) -> dict[str, Tensor]:
        """Return the weights outside the layers, tables as the bundle will hold them."""
        return {name: self._stored(name, w) for name, w in self.executor.head_weights().items()}

    def _head(self, weights: Mapping[str, Tensor], ids: Tensor) -> tuple[str, Blocks | None]:
        """Return the name of the table that makes logits, and its blocks if they are calibrated."""
        token = self.executor.embed(ids[:1, :1], weights)
        name, x = self.executor.head_reads(token, weights)
        role: Role = "embedding" if _is_tied(weights) else "head"
        form = self.policy.decide(role, x.shape[-1], name).form
        return name, form if isinstance(form, Blocks) and "gptq" in self.method else None

    def _moments(
        self, weights: Mapping[str, Tensor], quantized: HiddenStates, original: HiddenStates
    ) -> Moments:
        moments: Moments | None = None
        for hidden, wanted in zip(quantized, original, strict=True):
            (_, x), (_, y) = (self.executor.head_reads(h, weights) for h in (hidden, wanted))
            moments = moments or Moments(x.shape[-1])
            moments.add(x, y)
        assert moments is not None, "there is a window"
        return moments

    def _stored(self, name: str, weight: Tensor) -> Tensor:
        if weight.ndim != MATRIX_AXES:
            return weight
        if name in self.spool:
            codes = self.spool[name].read(0, len(weight))
        else:
            form = self.policy.decide("embedding", weight.shape[1], name).form
            if not isinstance(form, Blocks):
                return weight
            codes = round_matrix(weight.numpy(), form)
        return torch.from_numpy(codes.matrix(weight.shape[1]))


def _is_tied(weights: Mapping[str, Tensor]) -> bool:
    return sum(weight.ndim == MATRIX_AXES for weight in weights.values()) == 1
