"""How large keys and values get on a text: the scales of a cache in 8 bits.

Axes: W windows, T tokens of a window, K key heads, C cache capacity, D channels of a head.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wiola_export.errors import EvaluationError
from wiola_export.evaluate.divergence import TokenIds
from wiola_runtime.graph import Graph
from wiola_runtime.manifest import Manifest, StateSpec
from wiola_runtime.opening import GraphOptions

Magnitudes = NDArray[np.float32]

LARGEST_CODE = 127
KEY_SUFFIX = ".key"  # the names of states follow the ecosystem in every family


def cache_scales(bundle: Path, manifest: Manifest, windows: TokenIds) -> dict[str, Magnitudes]:
    """Run a bundle over windows (W, T); return the scales (K, D) of each cache by its input name.

    A scale is a 127th of the largest magnitude: a code for what was seen, none wasted on more.
    Rotation turns the channels j and j + D/2 of a key into each other as positions grow, so both
    get the largest radius of the pair: it holds at positions that no window reaches. A channel
    that was always zero gets the largest scale of its head.

    Args:
        bundle: Folder with a graph and its weights, caches in floating point.
        manifest: Describes it; need not lie in the folder yet.
        windows: Text of the kind that the model is for, and that it isn't measured on.

    Raises:
        EvaluationError: The caches are int8 already, or not finite.
        WiolaRuntimeError: The bundle does not run, or a window is longer than its context.
    """
    caches = {i: spec for i, spec in enumerate(manifest.states) if spec.kind == "cache"}
    if any(spec.dtype == "int8" for spec in caches.values()):
        raise EvaluationError(
            f"the caches of {manifest.name} are int8 already; measure the bundle that has them "
            "in floating point"
        )
    graph = Graph(bundle, manifest, GraphOptions())
    largest: dict[str, Magnitudes] = {}
    for window in windows:
        state = graph.start()
        graph.run(state, window[None], np.asarray([window.size - 1]))
        for index, spec in caches.items():
            found = largest_magnitudes(spec, state.past[index].numpy()[0, :, : window.size])
            largest[spec.past] = np.maximum(largest.get(spec.past, found), found)
    return {name: scales_for(magnitudes) for name, magnitudes in largest.items()}


def largest_magnitudes(spec: StateSpec, entries: NDArray[np.floating]) -> Magnitudes:
    """Return the largest magnitude (K, D) of each channel of what a cache holds, (K, T, D).

    Raises:
        EvaluationError: Not all of it is finite.
    """
    magnitudes = np.abs(entries.astype(np.float32))
    if spec.past.endswith(KEY_SUFFIX):
        radius = np.hypot(*np.split(magnitudes, 2, axis=-1))
        magnitudes = np.concatenate([radius, radius], axis=-1)
    largest: Magnitudes = magnitudes.max(axis=1)
    if not np.isfinite(largest).all():
        raise EvaluationError(
            f"{spec.past} is not finite; the model is broken there and cannot be quantized"
        )
    return largest


def scales_for(largest: Magnitudes) -> Magnitudes:
    """Return positive scales (K, D) for the largest magnitudes of each channel."""
    of_head = largest.max(axis=-1, keepdims=True)
    filled = np.where(largest > 0, largest, np.where(of_head > 0, of_head, 1.0))
    scales = (filled / LARGEST_CODE).astype(np.float32)
    return np.maximum(scales, np.finfo(np.float32).tiny)
