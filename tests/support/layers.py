"""The layers of a recorded checkpoint, each with what it reads.

Axes: B batch, T positions.
"""

import functools

import torch
from support import oracles

from wiola_export.reference import open_executor


@functools.cache
def layers_of(name):
    """Return (layer, hidden states before it) for every layer of a case, run on its own text."""
    case = oracles.load(name)
    executor = open_executor(case, lambda tensor: torch.from_numpy(case.weights[tensor]))
    found = []
    with torch.no_grad():
        hidden = executor.embed(torch.from_numpy(case.input_ids), executor.head_weights())
        for layer in executor.layers():
            found.append((layer, hidden))
            hidden = layer.run(hidden)
    return found


def run(layer, hidden, weights=None):
    """Run a layer, and return the stream and all that it carries on, as one list."""
    with torch.no_grad():
        after = layer.run(hidden, weights)
    return [after.x, *after.carry]
