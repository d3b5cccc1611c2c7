"""How much each weight's rounding costs, for every candidate format, from one backward pass.

To second order, rounding a weight W to W + Δ costs KL(float || rounded) = ½ ⟨Δ, F Δ⟩ with F the
Fisher information: the mean of (g gᵀ) over gradients g of the loss on labels that the model itself
draws. So with G the gradient of one window's loss, ½ mean of ⟨G, Δ⟩² estimates the divergence of a
window for any number of Δ at the cost of one pass. Layers run one at a time here as well: hidden
states forward are kept in files, gradients go back through one layer after the other.

Source of the expansion: Martens, "New Insights and Perspectives on the Natural Gradient Method",
arXiv 1412.1193, section 9.
Axes: W windows, T tokens of a window, V vocabulary, d hidden size.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wiola_export.calibrate.hidden import HiddenStates
from wiola_export.calibrate.taps import matrices
from wiola_export.families.layerwise import Hidden, LayerwiseExecutor, LoadedLayer
from wiola_export.progress import Progress
from wiola_export.quantize.formats import Blocks, Format
from wiola_export.quantize.policy import Role
from wiola_export.quantize.rounding import round_matrix
from wiola_export.reference import open_executor, read_tensor
from wiola_export.source import Model

Candidates = Callable[[Role, str, tuple[int, ...]], Sequence[Format]]
Costs = dict[str, dict[Format, float]]
Differences = dict[str, dict[Format, Tensor]]
# ⟨G, Δ⟩ by tensor and format, one number a window.
Scores = dict[tuple[str, Format], list[float]]


def measure_sensitivity(
    model: Model,
    windows: NDArray[np.int64],
    candidates: Candidates,
    folder: Path,
    progress: Progress,
) -> Costs:
    """Estimate the mean KL divergence in nats per token of rounding each tensor alone.

    Args:
        model: A checkpoint.
        windows: Token ids (W, T); a window is one sample of the estimate.
        candidates: Formats to try, by role, name and shape of a tensor; empty for those left alone.
        folder: Takes hidden states; the caller removes it.
        progress: Is told what goes on.

    Returns:
        By tensor and format; keeping floats costs nothing and is not listed.
    """
    executor = open_executor(model, lambda name: read_tensor(model, name))
    scores: Scores = {}
    groups = [torch.from_numpy(window[None]) for window in windows]
    outside = executor.head_weights()
    with torch.no_grad():
        states = [_spill((executor.embed(ids, outside) for ids in groups), folder / "embedded")]
        for index, layer in enumerate(executor.layers()):
            states.append(_spill((layer.run(h) for h in states[-1]), folder / f"layer-{index}"))
    gradients = _through_head(executor, outside, states.pop(), candidates, scores)
    loaded = progress.track(executor.layers_backward(), executor.num_layers)
    for layer, inputs in zip(loaded, reversed(states), strict=True):
        gradients = _through_layer(layer, inputs, gradients, candidates, scores)
    _through_embedding(executor, outside, zip(groups, gradients, strict=True), candidates, scores)
    return _costs(scores, tokens=windows.shape[1])


def _through_head(
    executor: LayerwiseExecutor,
    weights: Mapping[str, Tensor],
    states: HiddenStates,
    candidates: Candidates,
    scores: Scores,
) -> list[Hidden]:
    """Score the matrices that make logits; return the gradient of each window's loss."""
    differences = _differences("embedding", weights, candidates)
    generator = torch.Generator().manual_seed(0)
    gradients: list[Hidden] = []
    for hidden in states:
        tracked = {n: w.detach().requires_grad_(n in differences) for n, w in weights.items()}
        x = hidden.x.detach().requires_grad_()
        logits = executor.head(Hidden(x, hidden.carry), tracked)
        with torch.no_grad():
            slope = _label_slope(logits, generator)
        names = list(differences)
        found = torch.autograd.grad(
            logits, [x, *(tracked[n] for n in names)], slope, allow_unused=True
        )
        _score(dict(zip(names, found[1:], strict=True)), differences, scores)
        gradients.append(Hidden(found[0], tuple(torch.zeros_like(c) for c in hidden.carry)))
    return gradients


def _through_layer(
    layer: LoadedLayer,
    states: HiddenStates,
    gradients: Sequence[Hidden],
    candidates: Candidates,
    scores: Scores,
) -> list[Hidden]:
    """Score the matrices of a layer; return the gradients at its input."""
    names = {name: layer.full_name(name) for name in matrices(layer)}
    matrix_weights = {full: layer.weights[name] for name, full in names.items()}
    differences = _differences("matrix", matrix_weights, candidates)
    chosen = [name for name, full in names.items() if full in differences]
    passed: list[Hidden] = []
    for hidden, gradient in zip(states, gradients, strict=True):
        tracked = {n: w.detach().requires_grad_(n in chosen) for n, w in layer.weights.items()}
        inputs = [t.detach().requires_grad_() for t in (hidden.x, *hidden.carry)]
        result = layer.run(Hidden(inputs[0], tuple(inputs[1:])), tracked)
        outputs, slopes = _paired(result, gradient)
        found = torch.autograd.grad(
            outputs, [*inputs, *(tracked[n] for n in chosen)], slopes, allow_unused=True
        )
        full_names = (names[name] for name in chosen)
        _score(dict(zip(full_names, found[len(inputs) :], strict=True)), differences, scores)
        back = [
            torch.zeros_like(tensor) if slope is None else slope  # type: ignore[redundant-expr]
            for tensor, slope in zip(inputs, found, strict=False)
        ]
        passed.append(Hidden(back[0], tuple(back[1:])))
    return passed


def _through_embedding(
    executor: LayerwiseExecutor,
    weights: Mapping[str, Tensor],
    windows: Iterable[tuple[Tensor, Hidden]],
    candidates: Candidates,
    scores: Scores,
) -> None:
    """Score the lookups, given the ids of each window and the gradient that reaches them.

    A table that makes logits too has a score of each window already.
    """
    differences = _differences("embedding", weights, candidates)
    names = list(differences)
    for index, (ids, gradient) in enumerate(windows):
        tracked = {n: w.detach().requires_grad_(n in differences) for n, w in weights.items()}
        x = executor.embed(ids, tracked).x
        found = torch.autograd.grad(x, [tracked[n] for n in names], gradient.x, allow_unused=True)
        _score(dict(zip(names, found, strict=True)), differences, scores, add_to=index)


def _spill(groups: Iterator[Hidden], folder: Path) -> HiddenStates:
    return HiddenStates(groups, folder, in_memory_bytes=0)


def _label_slope(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Return the gradient of the loss on labels drawn from the model: p − onehot, (1, T, V)."""
    chances = logits.softmax(-1)
    labels = torch.multinomial(chances[0], 1, generator=generator)
    return chances.scatter_add(
        2, labels[None], torch.full_like(labels[None], -1.0, dtype=chances.dtype)
    )


def _paired(result: Hidden, gradient: Hidden) -> tuple[list[Tensor], list[Tensor]]:
    """Return the outputs that anything can flow back through, with their gradients."""
    pairs = zip((result.x, *result.carry), (gradient.x, *gradient.carry), strict=True)
    flowing = [(output, slope) for output, slope in pairs if output.requires_grad]
    return [output for output, _ in flowing], [slope for _, slope in flowing]


def _differences(role: Role, weights: Mapping[str, Tensor], candidates: Candidates) -> Differences:
    """Round every weight in every format; differences are kept in half the space."""
    found: Differences = {}
    for name, weight in weights.items():
        for form in candidates(role, name, tuple(weight.shape)):
            if isinstance(form, Blocks):
                codes = round_matrix(weight.detach().numpy(), form)
                rounded = torch.from_numpy(codes.matrix(weight.shape[1]))
                found.setdefault(name, {})[form] = (rounded - weight).bfloat16()
    return found


def _score(
    gradients: Mapping[str, Tensor],
    differences: Differences,
    scores: Scores,
    *,
    add_to: int | None = None,
) -> None:
    """Append ⟨G, Δ⟩ of one window, or add it to what that window has already."""
    for name, gradient in gradients.items():
        if gradient is None:  # torch's types leave this out
            continue  # nothing reads it here
        for form, difference in differences[name].items():
            score = float((gradient * difference).sum())
            windows = scores.setdefault((name, form), [])
            if add_to is None or add_to >= len(windows):
                windows.append(score)
            else:
                windows[add_to] += score


def _costs(scores: Scores, *, tokens: int) -> Costs:
    costs: Costs = {}
    for (name, form), windows in scores.items():
        squares = np.square(np.asarray(windows))
        costs.setdefault(name, {})[form] = float(squares.mean() / 2 / tokens)
    return costs
