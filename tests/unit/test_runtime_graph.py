"""The graph's driver against a numpy oracle: every way to feed a text gives the same logits."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_bundle import TinyBundle, vocab_size

from wiola_runtime import BundleError, CapacityError, GenerationError, load
from wiola_runtime.config import GenerationConfig
from wiola_runtime.generate import Guesses, generate, generate_guessing
from wiola_runtime.lookup import PromptLookup
from wiola_runtime.row import Row
from wiola_runtime.sampling import sampler
from wiola_runtime.scoring import score
from wiola_runtime.state import capacity_for, shape_of

LAYOUTS = {
    "shared": (TinyBundle(cache="shared"), 2e-5),
    "growing": (TinyBundle(cache="growing"), 2e-5),
    "float16": (TinyBundle(cache="shared", cache_dtype="float16", target="cuda"), 2e-2),
}
IDS = np.random.default_rng(0).integers(0, vocab_size(), 600)


@pytest.fixture(scope="module", params=LAYOUTS)
def opened(request, tmp_path_factory):
    """Return (model, oracle logits of IDS, tolerance) for every layout of the cache."""
    bundle, tolerance = LAYOUTS[request.param]
    folder = bundle.write(tmp_path_factory.mktemp("bundles") / request.param)
    with load(folder) as model:
        yield model, bundle.oracle(IDS), tolerance


@pytest.mark.parametrize("chunk", [1, 2, 7, 32, 63, 600])
def test_chunks_of_any_size_give_the_logits_of_one_pass(opened, chunk):
    """The capacity grows twice on the way, and the last position of the context is used."""
    model, expected, tolerance = opened
    row = Row(model._engine.graph)
    starts = range(0, IDS.size, chunk)

    logits = np.stack([row.step(IDS[start : start + chunk]).copy() for start in starts])

    ends = [min(start + chunk, IDS.size) - 1 for start in starts]
    np.testing.assert_allclose(logits, expected[ends], atol=tolerance)


@given(cuts=st.sets(st.integers(1, 299), max_size=12))
@settings(max_examples=10, deadline=None)
def test_any_mixture_of_chunks_and_steps_gives_the_same(opened, cuts):
    """Running sums swap buffers at every call, whatever its length."""
    model, expected, tolerance = opened
    row = Row(model._engine.graph)

    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), 300], strict=True):
        logits = row.step(IDS[start:end])

        np.testing.assert_allclose(logits, expected[end - 1], atol=tolerance)


def test_buffers_outlive_the_calls_that_wrote_them(opened):
    """Nothing of a finished call is needed, even if its memory is reused at once."""
    model, expected, tolerance = opened
    row = Row(model._engine.graph)
    for position in range(40):
        logits = row.step(IDS[position : position + 1])
        [np.full(32, np.nan, np.float32) for _ in range(50)]

    np.testing.assert_allclose(logits, expected[39], atol=tolerance)


@pytest.mark.parametrize("chunk", [64, 512])
def test_logits_of_every_position(opened, chunk):
    """The whole context in one call of `score`, however it is cut."""
    model, expected, tolerance = opened

    logits = score(model._engine.graph, model.manifest, IDS[None], chunk)

    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits[0], expected, atol=tolerance)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (3, 100), (2, 300)])
def test_windows_score_as_they_do_alone(opened, shape):
    """A row of a batch gives what it gives alone, in one call or several."""
    model, _, tolerance = opened
    windows = IDS[: shape[0] * shape[1]].reshape(shape)

    together = model.logits(windows)

    assert together.shape == (*shape, vocab_size())
    for row, window in zip(together, windows, strict=True):
        np.testing.assert_allclose(row, model.logits(window), atol=tolerance)


def test_rows_decode_together_at_their_own_lengths(tmp_path):
    """A batch of one new token per row, the rows having seen 3 and 9 tokens."""
    bundle = TinyBundle()
    with load(bundle.write(tmp_path / "b")) as model:
        rows = [Row(model._engine.graph) for _ in range(2)]
        lengths = (3, 9)
        for row, length in zip(rows, lengths, strict=True):
            row.step(IDS[:length])
        state = model._engine.graph.start(2)
        state.lengths[:] = lengths
        for index in range(3):
            parts = [row.state.past[index].numpy() for row in rows]
            state.past[index].update_inplace(np.concatenate(parts))

        logits = model._engine.graph.run(state, IDS[[[3], [9]]], np.asarray([0]))

    expected = [bundle.oracle(IDS[: length + 1])[-1] for length in lengths]
    np.testing.assert_allclose(logits[:, 0], expected, atol=2e-5)
    assert state.lengths.tolist() == [4, 10]


def test_a_decode_step_binds_nothing(tmp_path):
    """Steps reuse one binding per parity, until the buffers grow."""
    with load(TinyBundle().write(tmp_path / "b")) as model:
        row = Row(model._engine.graph)
        row.step(IDS[:250])
        row.step(IDS[:1])
        row.step(IDS[:1])
        calls = [id(call) for call in row.state.steps]
        for _ in range(4):
            row.step(IDS[:1])

        assert [id(call) for call in row.state.steps] == calls
        assert row.state.capacity == 256
        row.step(IDS[:1])
        assert row.state.capacity == 512


class CopyingValues:
    """Stands for a device: what is bound there is a copy of the host's array, taken at once."""

    def __init__(self, ort):
        self.InferenceSession = ort.InferenceSession
        self.OrtValue = self
        self._values = ort.OrtValue

    def ortvalue_from_numpy(self, array, *_):
        is_input = array.dtype == np.int64
        return self._values.ortvalue_from_numpy(array.copy() if is_input else array)


def test_a_device_gets_its_inputs_anew_for_every_call(tmp_path):
    """There an array that changes after it was bound changes nothing."""
    bundle = TinyBundle()
    with load(bundle.write(tmp_path / "b")) as model:
        graph = model._engine.graph
        graph._ort, graph.device = CopyingValues(graph._ort), "elsewhere"
        row = Row(graph)
        logits = np.stack([row.step(IDS[i : i + 1]).copy() for i in range(300)])

    np.testing.assert_allclose(logits, bundle.oracle(IDS[:300]), atol=2e-5)


def test_threads_share_a_model(opened):
    """Each call has its own state: four at once give what each gives alone."""
    model, expected, tolerance = opened
    starts = (0, 40, 80, 120)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda n: model.logits(IDS[: n + 30]), starts))

    for start, logits in zip(starts, results, strict=True):
        np.testing.assert_allclose(logits, expected[: start + 30], atol=tolerance)


def test_the_cache_is_as_small_as_the_text():
    """A context of 131072 tokens costs a short prompt 256 of them."""
    assert [capacity_for(n, 131072) for n in (1, 256, 257, 1025, 131072)] == [
        256,
        256,
        512,
        2048,
        131072,
    ]
    assert capacity_for(300, 400) == 400
    with pytest.raises(CapacityError, match=r"401 tokens do not fit the context of 400"):
        capacity_for(401, 400)


def test_a_state_beyond_the_context_is_refused_before_it_is_changed(opened):
    """The error leaves the row as it was."""
    model, expected, tolerance = opened
    row = Row(model._engine.graph)
    row.step(IDS[:599])

    with pytest.raises(CapacityError, match=r"601 tokens do not fit the context of 600"):
        row.step(IDS[:2])

    np.testing.assert_allclose(row.step(IDS[599:]), expected[599], atol=tolerance)


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([], GenerationError, r"shape \(0,\) and type float64; expected integers \(T,\)"),
        ([0.5], GenerationError, r"type float64; expected integers"),
        ([[[1]]], GenerationError, r"shape \(1, 1, 1\)"),
        ([[1], [1, 2]], GenerationError, r"token ids have unequal lengths; expected"),
        ([3, -1], GenerationError, r"token id -1 is outside the vocabulary of 300"),
        ([3, 300], GenerationError, r"token id 300 is outside the vocabulary of 300"),
        ([1] * 601, CapacityError, r"601 tokens do not fit the context of 600"),
    ],
)
def test_bad_ids_are_refused_before_any_work(opened, ids, error, message):
    with pytest.raises(error, match=message):
        opened[0].logits(ids)


def test_a_manifest_that_describes_another_graph_is_refused(tmp_path):
    """Tensors are compared when the graph is opened, not when it first runs."""
    folder = TinyBundle().write(tmp_path / "b")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"sum_in"', '"other"'))

    with pytest.raises(BundleError, match=r"disagree on the inputs other, sum_in; export again"):
        load(folder)


def test_an_unknown_axis_is_named():
    with pytest.raises(BundleError, match=r"a state the axes \['Q'\]; expected B, C"):
        shape_of(("B", "Q"), {"B": 1, "C": 2})


def test_the_loop_prefills_once_and_then_steps():
    """The prompt is consumed whole, every later call feeds one token, the last feeds none."""

    class Successor:
        fed = ()

        def step(self, token_ids):
            self.fed += (tuple(token_ids),)
            return np.eye(10, dtype=np.float32)[(token_ids[-1] + 1) % 10]

    model = Successor()
    pick = sampler(GenerationConfig(), vocab_size=10)

    assert list(generate(model, [1, 2, 3], pick=pick, max_new_tokens=3)) == [4, 5, 6]
    assert model.fed == ((1, 2, 3), (4,), (5,))


@pytest.mark.parametrize("budget", [0, 1, 7, 30])
def test_the_guessing_loop_ends_by_itself_and_gives_what_the_plain_one_gives(opened, budget):
    """Its last token is fed to nothing either."""
    graph = opened[0]._engine.graph
    prompt = [9, 10, 11, 12, 9, 10, 11, 12, 9, 10]
    row, tally = Row(graph), Guesses()

    guessed = list(
        generate_guessing(
            row,
            PromptLookup(prompt),
            pick=lambda logits: int(logits.argmax()),
            max_new_tokens=budget,
            most=3,
            tally=tally,
        )
    )

    plain = generate(Row(graph), prompt, pick=lambda x: int(x.argmax()), max_new_tokens=budget)
    assert guessed == list(plain)
    assert row.length <= len(prompt) + max(budget - 1, 0)
    assert tally.accepted <= tally.guessed


def _tampered(folder, change):
    """Write a bundle whose manifest was changed."""
    path = TinyBundle().write(folder) / "manifest.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.update(vocab_size=10**12), "disagree on the outputs scores; export"),
        (lambda raw: raw.update(vocab_size=0), "disagree on the outputs scores; export"),
        (lambda raw: raw.update(states=[]), "disagree on the inputs key_in, sum_in, value_in;"),
        (lambda raw: raw["states"][0].update(past="x"), "disagree on the inputs key_in, x;"),
        (lambda raw: raw["states"][0].update(dtype="int8"), "disagree on the inputs key_in;"),
        (lambda raw: raw["states"][2].update(axes=["B", -3]), "disagree on the inputs sum_in;"),
        (lambda raw: raw["states"][2].update(present="x"), "disagree on the outputs sum_out, x;"),
        (lambda raw: raw["graph"].update(minimum_onnxruntime="banana"), "needs onnxruntime 'ban"),
        (lambda raw: raw["graph"].update(minimum_onnxruntime="9" * 5000), "needs onnxruntime '9"),
    ],
)
def test_what_the_graph_is_not_is_said_when_it_is_opened(tmp_path, change, message):
    with pytest.raises(BundleError, match=message):
        load(_tampered(tmp_path / "b", change))


def test_a_context_that_the_graph_does_not_have_is_an_error_where_it_ends(tmp_path):
    folder = _tampered(tmp_path / "b", lambda raw: raw.update(context_length=700))

    with load(folder) as model:
        assert model.logits([1] * 600).shape == (600, vocab_size())
        with pytest.raises(
            BundleError, match=r"^onnxruntime cannot run the graph: .*idx=600 must be"
        ):
            model.logits([1] * 650)
