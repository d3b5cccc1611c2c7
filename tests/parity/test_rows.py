"""No axis is frozen, and a row of a batch gives what it gives alone.

The torch module stands for the package here; the ladder shows that the two are one.
"""

import functools

import numpy as np
import pytest
import torch
from support import oracles
from support.graphs import GraphRunner, distance

from wiola_export.options import Quantization
from wiola_runtime.graph import Graph
from wiola_runtime.manifest import Manifest
from wiola_runtime.opening import GraphOptions
from wiola_runtime.row import Row

CASES = ("gqa3", "nano_like", "moment_odd")
every_case = pytest.mark.parametrize("name", CASES)
TOLERANCE = 1e-3
CONTEXT_CHECKED = 103  # 40 cached and 63 new tokens
ROWS = 5
RAGGED = (1, 9, 40, 2, 23)

IDS = np.random.default_rng(11).integers(0, 320, (ROWS, CONTEXT_CHECKED))


@functools.cache
def expected_logits(name):
    """Return torch's logits (5, 103, V) of one full pass."""
    case = oracles.load(name)
    model, states = oracles.torch_model(case), case.config.states()
    sizes = {"B": ROWS, "P": 0}
    empty = [torch.zeros([sizes.get(a, a) for a in state.axes]) for state in states]
    with torch.no_grad():
        zeros, positions = torch.zeros(ROWS, dtype=torch.int64), torch.arange(CONTEXT_CHECKED)
        return model(torch.from_numpy(IDS), zeros, positions, empty)[0].numpy()


@functools.cache
def runner(name, target):
    graph, _ = oracles.lowered(oracles.load(name), target, Quantization(precision="fp32"))
    return GraphRunner(graph, capacity=128)


@functools.cache
def semantic(name):
    return GraphRunner(oracles.semantic(oracles.load(name)))


@pytest.fixture(scope="module", params=CASES)
def opened(request, tmp_path_factory):
    """Give the name of a case and a graph on its bundle."""
    root = tmp_path_factory.mktemp("rows")
    checkpoint = oracles.write_checkpoint(oracles.load(request.param), root / "checkpoint")
    out = oracles.write_bundle(checkpoint, root / "bundle", "cpu", Quantization(precision="fp32"))
    return request.param, Graph(out, Manifest.read(out), GraphOptions(threads=1))


def check_axes(name, graph, past, new, batch):
    ids, lengths = IDS[:batch], np.full(batch, past)
    state = graph.empty(batch)
    for done in range(past):  # one token a call, so that every target can fill a batch's cache
        _, state, _ = graph.run(ids[:, done : done + 1], np.full(batch, done), state)

    logits, _, _ = graph.run(ids[:, past : past + new], lengths, state)

    assert distance(logits, expected_logits(name)[:batch, past : past + new]) < TOLERANCE


all_sizes = [(p, t, b) for p in (0, 1, 40) for t in (1, 2, 63) for b in (1, 2, 5)]


@pytest.mark.parametrize(("past", "new", "batch"), all_sizes)
@pytest.mark.parametrize("make", [semantic, functools.partial(runner, target="portable")])
@every_case
def test_a_growing_graph_takes_every_size(name, make, past, new, batch):
    check_axes(name, make(name), past, new, batch)


@pytest.mark.parametrize(
    ("past", "new", "batch"),
    [(p, t, b) for p, t, b in all_sizes if p == 0 or t == 1 or b == 1],
)
@every_case
def test_a_shared_graph_takes_every_size_of_its_contract(name, past, new, batch):
    """Several rows of several tokens have nothing cached."""
    check_axes(name, runner(name, "cpu"), past, new, batch)


@pytest.mark.parametrize("wanted", [[0], [4], [4, 0, 2], [1, 1]])
@pytest.mark.parametrize("target", ["cpu", "portable"])
@every_case
def test_the_positions_that_return_logits_are_free(name, target, wanted):
    graph = runner(name, target)

    logits, _, _ = graph.run(IDS[:2, :5], np.zeros(2), graph.empty(2), np.asarray(wanted))

    assert distance(logits, expected_logits(name)[:2, wanted]) < TOLERANCE


def test_rows_decode_together_at_their_own_lengths(opened):
    """Neighbours are shorter and longer; eight steps, each row at positions of its own."""
    name, graph = opened
    rows = [Row(graph) for _ in RAGGED]
    for row, ids, length in zip(rows, IDS, RAGGED, strict=True):
        row.step(ids[:length])
    state = batch_of(graph, [row.state for row in rows])

    for step in range(8):
        at = [length + step for length in RAGGED]
        found = graph.run(state, IDS[range(ROWS), at][:, None], np.asarray([0]))[:, 0].copy()

        assert distance(found, expected_logits(name)[range(ROWS), at]) < TOLERANCE


def test_running_sums_see_the_rows_own_tokens_only(opened):
    """After decoding beside a longer neighbour they are what the row alone has."""
    _, graph = opened
    lengths = (3, 40)
    rows = [Row(graph) for _ in lengths]
    for row, ids, length in zip(rows, IDS[:2], lengths, strict=True):
        row.step(ids[:length])
    state = batch_of(graph, [row.state for row in rows])
    for row, ids, length in zip(rows, IDS[:2], lengths, strict=True):
        row.step(ids[length : length + 1])
    graph.run(state, IDS[[0, 1], lengths][:, None], np.asarray([0]))

    for index, spec in enumerate(graph._manifest.states):
        if spec.kind == "sum":
            alone = np.concatenate([row.state.past[index].numpy() for row in rows])
            together = state.past[index].numpy()
            np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-4)


def test_what_lies_beyond_a_rows_length_changes_nothing(opened):
    """The unused end of a shared cache may hold anything."""
    _, graph = opened
    clean, dirty = Row(graph), Row(graph)
    for row in (clean, dirty):
        row.step(IDS[0, :20])
    for index, spec in enumerate(graph._manifest.states):
        if spec.kind == "cache":
            cache = dirty.state.past[index].numpy()
            cache[:, :, 20:] = 77.0
            dirty.state.past[index].update_inplace(cache)

    found, expected = dirty.step(IDS[0, 20:21]).copy(), clean.step(IDS[0, 20:21]).copy()

    assert np.array_equal(found, expected)


@pytest.mark.parametrize("row", range(3))
@every_case
def test_a_neighbour_never_changes_a_row(name, row):
    """Windows of equal length share a call; the others' tokens are replaced."""
    graph = runner(name, "cpu")
    ids = IDS[:3, :30]
    other = np.roll(ids, 7, axis=1)
    other[row] = ids[row]

    before, after = graph.all_at_once(ids)[0], graph.all_at_once(other)[0]

    assert distance(after[row], before[row]) < 1e-5
    assert distance(after, before) > 1


def batch_of(graph, states):
    """Put rows that were prefilled alone side by side."""
    state = graph.start(len(states))
    state.lengths[:] = [int(one.lengths[0]) for one in states]
    for index in range(len(state.past)):
        parts = [one.past[index].numpy() for one in states]
        state.past[index].update_inplace(np.concatenate(parts))
    return state
