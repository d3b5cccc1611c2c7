"""Keys and values in 8 bits: what the kernel stores, what the pass changes, what a bundle gives.

Axes: B row, T new positions, K key heads, H query heads, D channels, C cache capacity.
"""

import dataclasses
import json
from unittest import mock

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import oracles
from support.graphs import GraphRunner, distance, run_nodes
from support.tiny_bundle import HEAD_SIZE, TinyBundle, vocab_size

from wiola_calibration import packaged_calibration
from wiola_export import bundle, pipeline
from wiola_export.errors import EvaluationError, LoweringError
from wiola_export.evaluate.cache_scales import cache_scales, scales_for
from wiola_export.measure import measure_accuracy, texts_to_measure
from wiola_export.options import CalibrationOptions, ExportOptions, Quantization, Source
from wiola_export.passes.quantize_cache import QuantizeCache
from wiola_export.prepare import calibration_windows
from wiola_export.progress import Silent
from wiola_export.serialize import write_graph, write_model
from wiola_export.source import demo_folder, find_model
from wiola_runtime import BundleError, Manifest, load
from wiola_runtime.devices import check_version
from wiola_runtime.scoring import Row, score

FP32 = Quantization(precision="fp32")
HEADS, GROUPS, SIZE, CAPACITY = 4, 2, 8, 16
KEY, VALUE = "past_key_values.0.key", "past_key_values.0.value"
IDS = np.random.default_rng(0).integers(0, vocab_size(), 600)


# The kernel


def attention(scales):
    """Return one attention with int8 caches."""
    model = ir.from_onnx_text(f"""
<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
one (float[B, T, {HEADS * SIZE}] q, float[B, T, {GROUPS * SIZE}] k, float[B, T, {GROUPS * SIZE}] v,
     float[B, {GROUPS}, C, {SIZE}] key, float[B, {GROUPS}, C, {SIZE}] value,
     int32[B] last, int32 longest)
  => (float[B, T, {HEADS * SIZE}] y, float[B, {GROUPS}, C, {SIZE}] key_out,
      float[B, {GROUPS}, C, {SIZE}] value_out)
{{
  y, key_out, value_out = com.microsoft.GroupQueryAttention
      <num_heads = {HEADS}, kv_num_heads = {GROUPS}> (q, k, v, key, value, last, longest)
}}""")
    QuantizeCache(scales)(model)
    return model


def feed(q, k, v):
    """Return the inputs of a first call of one row."""
    empty = np.zeros((1, GROUPS, CAPACITY, SIZE), np.int8)
    count = len(q)
    return {
        "q": q[None],
        "k": k[None],
        "v": v[None],
        "key": empty,
        "value": empty,
        "last": np.array([count - 1], np.int32),
        "longest": np.array(count, np.int32),
    }


def codes(entries, scales):
    """Return the int8 codes (K, T, D) of rows (T, K·D)."""
    heads = entries.reshape(-1, GROUPS, SIZE).swapaxes(0, 1)
    return np.clip(np.rint(heads / scales[:, None]), -128, 127)


def attend(q, keys, values):
    """Return causal attention (T, H·D) as the formula says, in float64; keys (K, T, D)."""
    queries = q.reshape(-1, HEADS, SIZE).swapaxes(0, 1).astype(np.float64)
    keys, values = (np.repeat(x, HEADS // GROUPS, axis=0) for x in (keys, values))
    scores = queries @ keys.swapaxes(1, 2) / np.sqrt(SIZE)
    scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    chances = np.exp(scores - scores.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    return (chances @ values).swapaxes(0, 1).reshape(len(q), -1)


SCALES = arrays.arrays(np.float32, (GROUPS, SIZE), elements=st.floats(0.0078125, 1, width=32))


@given(key_scales=SCALES, value_scales=SCALES, seed=st.integers(0, 99), count=st.integers(1, 16))
@settings(max_examples=25, deadline=None)
def test_the_kernel_stores_codes_and_computes_with_what_they_stand_for(
    key_scales, value_scales, seed, count
):
    """A token reads its own key and value as they are stored, in the first call already."""
    rng = np.random.default_rng(seed)
    q, k, v = (
        rng.standard_normal((count, heads * SIZE), np.float32) for heads in (HEADS, GROUPS, GROUPS)
    )

    y, keys, values = run_nodes(
        attention({"key": key_scales, "value": value_scales}), feed(q, k, v)
    )

    key_codes, value_codes = codes(k, key_scales), codes(v, value_scales)
    np.testing.assert_array_equal(keys[0, :, :count], key_codes)
    np.testing.assert_array_equal(values[0, :, :count], value_codes)
    expected = attend(q, key_codes * key_scales[:, None], value_codes * value_scales[:, None])
    np.testing.assert_allclose(y[0], expected, atol=1e-5)


def test_what_is_larger_than_the_scale_allows_keeps_its_sign():
    """Codes stop at the ends of int8; they do not wrap around."""
    ones = np.ones((GROUPS, SIZE), np.float32)
    values = np.full((1, GROUPS * SIZE), 1e6, np.float32)

    _, keys, stored = run_nodes(
        attention({"key": ones, "value": ones}), feed(np.tile(values, 2), values, -values)
    )

    assert np.unique(keys[0, :, 0]) == [127]
    assert np.unique(stored[0, :, 0]) == [-128]


# The pass


def lowered(name="gqa3", target="cpu"):
    return oracles.lowered(oracles.load(name), target, FP32)[0]


def ones_for(model):
    """Return scales of 1 for every cache of a lowered graph."""
    return {
        value.name: np.ones((value.shape[1], value.shape[3]), np.float32)
        for value in model.graph.inputs
        if "key_values" in value.name
    }


def test_caches_change_their_type_and_nothing_else_does():
    model = lowered()
    before = {v.name: (v.dtype, str(v.shape)) for v in (*model.graph.inputs, *model.graph.outputs)}
    scales = ones_for(model)

    QuantizeCache(scales)(model)

    for value in (*model.graph.inputs, *model.graph.outputs):
        dtype, shape = before[value.name]
        is_cache = "key" in value.name or "value" in value.name
        assert value.dtype == (ir.DataType.INT8 if is_cache else dtype)
        assert str(value.shape) == shape
    assert len(scales) == 12
    for name in scales:
        assert model.graph.initializers[f"{name}.scale"].shape == (1, 2, 1, 16)


def test_a_second_run_changes_nothing():
    model = lowered()
    scales = ones_for(model)
    QuantizeCache(scales)(model)
    before = str(model.graph)

    assert not QuantizeCache(scales)(model).modified
    assert str(model.graph) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({KEY: None}, r"^no scales for the caches past_key_values\.0\.key; measure them on the"),
        ({"x": 1}, r"^no attention on a shared cache reads x, which have scales; quantize the"),
        (
            {KEY: np.ones((2, 8))},
            r"^the scales of past_key_values\.0\.key have shape \(2, 8\), expected \(2, 16\): one",
        ),
        ({VALUE: np.zeros((2, 16))}, r"^the scales of past_key_values\.0\.value are not all pos"),
        ({VALUE: np.full((2, 16), np.nan)}, r"not all positive and finite; a channel that is alw"),
        ({VALUE: np.full((2, 16), np.inf)}, r"not all positive and finite"),
    ],
)
def test_scales_that_do_not_fit_are_refused(change, message):
    model = lowered()
    scales = {k: v for k, v in (ones_for(model) | change).items() if v is not None}

    with pytest.raises(LoweringError, match=message):
        QuantizeCache(scales)(model)


def test_a_growing_cache_cannot_be_quantized():
    """The portable graph has no kernel for it, and must not keep floats in silence."""
    model = lowered(target="portable")

    with pytest.raises(LoweringError, match=r"no attention on a shared cache reads past_key_va"):
        QuantizeCache(ones_for(model))(model)


def test_a_cache_that_another_node_reads_is_refused():
    model = lowered()
    past = next(value for value in model.graph.inputs if value.name == KEY)
    model.graph.append(ir.node("Abs", [past]))

    with pytest.raises(
        LoweringError, match=r"past_key_values\.0\.key is read by Abs, GroupQueryAttention; only"
    ):
        QuantizeCache(ones_for(model))(model)


# The runtime


@dataclasses.dataclass(frozen=True, kw_only=True)
class Int8Bundle(TinyBundle):
    """The tiny bundle with int8 caches, scaled to what its weights give."""

    cache_dtype: str = "int8"

    def _graph(self):
        model = TinyBundle()._graph()
        QuantizeCache(self.scales())(model)
        return model

    def scales(self):
        w = self.weight_arrays()
        x = w["embedding"][IDS] + w["places"]
        return {
            f"{what}_in": scales_for(np.abs(x @ w[f"w_{what[0]}"]).max(0, keepdims=True))
            for what in ("key", "value")
        }


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    with load(Int8Bundle().write(tmp_path_factory.mktemp("bundles") / "int8")) as model:
        yield model


# Float sums of a call may depend on its shape, and beside the border of two codes tip one.
CHUNK_TOLERANCE = 5e-3


def test_codes_cost_little(opened):
    """Held to the formulas in float64; logits reach 11. Measured: 0.100, 5.5e-3 on average."""
    gaps = np.abs(opened.logits(IDS) - Int8Bundle().oracle(IDS))

    assert gaps.max() < 0.15
    assert 0 < gaps.mean() < 8e-3


@pytest.mark.parametrize("chunk", [1, 7, 63, 512])
def test_chunks_of_any_size_give_the_logits_of_one_call(opened, chunk):
    """The buffers grow twice on the way, and keep their codes."""
    expected = score(opened._session, opened.manifest, IDS[None], 600)[0]
    row = Row(opened._session)
    starts = range(0, IDS.size, chunk)

    logits = np.stack([row.step(IDS[start : start + chunk]).copy() for start in starts])

    ends = [min(start + chunk, IDS.size) - 1 for start in starts]
    np.testing.assert_allclose(logits, expected[ends], atol=CHUNK_TOLERANCE)


def test_windows_score_as_they_do_alone(opened):
    windows = IDS[:300].reshape(3, 100)

    for together, window in zip(opened.logits(windows), windows, strict=True):
        np.testing.assert_allclose(together, opened.logits(window), atol=CHUNK_TOLERANCE)


def test_rows_decode_together_at_their_own_lengths(opened):
    rows, lengths = [Row(opened._session) for _ in range(2)], (3, 9)
    for row, length in zip(rows, lengths, strict=True):
        row.step(IDS[:length])
    state = opened._session.start(2)
    state.lengths[:] = lengths
    for index in range(3):
        parts = [row._state.past[index].numpy() for row in rows]
        state.past[index].update_inplace(np.concatenate(parts))

    logits = opened._session.run(state, IDS[[[3], [9]]], np.asarray([0]))

    expected = opened.logits(IDS[:10])[list(lengths)]
    np.testing.assert_allclose(logits[:, 0], expected, atol=CHUNK_TOLERANCE)


def test_a_cache_takes_a_quarter_of_the_bytes(opened, tmp_path):
    with load(TinyBundle().write(tmp_path / "float32")) as other:
        sizes = [
            [buffer.numpy().nbytes for buffer in model._session.start().past[:2]]
            for model in (opened, other)
        ]

    assert sizes == [[256 * HEAD_SIZE] * 2, [4 * 256 * HEAD_SIZE] * 2]


def test_manifests_say_the_type_of_a_cache_and_old_ones_are_read(tmp_path):
    for kind in (Int8Bundle, TinyBundle):
        written = kind().manifest({})
        (tmp_path / "manifest.json").write_text(written.to_json(), encoding="utf-8")

        assert Manifest.read(tmp_path) == written
        dtype = "int8" if kind is Int8Bundle else "float32"
        assert [state.dtype for state in written.states] == [dtype, dtype, "float32"]
        assert json.loads(written.to_json())["format_version"] == 1


# A bundle, from measuring its scales to its self-test


WINDOWS = np.random.default_rng(3).integers(8, 256, (4, 40))


def export(checkpoint, folder, windows=None):
    """Write a float32 bundle; where there are windows, measure its caches and quantize them."""
    source = Source(checkpoint=checkpoint)
    options, model = ExportOptions(source=source, quantization=FP32), find_model(source)
    with mock.patch("wiola_export.trace.trace", oracles.shared_trace):
        graph, stored = pipeline.build_graph(model, options, Silent())
    folder.mkdir()
    write_model(graph, folder, Silent())
    bundle.copy_tokenizer(model, folder)
    scales = {}
    if windows is not None:
        manifest = bundle.describe(model, options, graph.graph, stored)
        scales = cache_scales(folder, manifest, windows)
        QuantizeCache(scales)(graph)
        write_graph(graph, folder)
    bundle.write_manifest(bundle.describe(model, options, graph.graph, stored), folder)
    return scales


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return (float32 folder, int8 folder, scales) of one oracle case."""
    base = tmp_path_factory.mktemp("exported")
    checkpoint = oracles.write_checkpoint(oracles.load("gqa3"), base / "checkpoint")
    export(checkpoint, base / "float32")
    return base / "float32", base / "int8", export(checkpoint, base / "int8", WINDOWS)


def test_scales_are_those_of_the_largest_key_and_value(exported):
    """Both channels of a rotated pair get the pair's largest radius."""
    folder, _, scales = exported
    caches = [s.past for s in Manifest.read(folder).states if s.kind == "cache"]

    expected = largest_in(folder)

    assert scales.keys() == set(caches)
    for name in caches:
        np.testing.assert_allclose(scales[name], expected[name] / 127, rtol=1e-6)


def largest_in(folder):
    """Return the largest value of a channel, and radius of a key's pair, (K, D) by cache."""
    runner = GraphRunner(folder / "model.onnx")
    _, found = runner.all_at_once(WINDOWS)
    largest = {}
    for layer in range(6):
        keys, values = (found[f"present.{layer}.{what}"][:, :, :40] for what in ("key", "value"))
        radius = np.sqrt(keys[..., :8] ** 2 + keys[..., 8:] ** 2).max((0, 2))
        largest[f"past_key_values.{layer}.key"] = np.tile(radius, (1, 2))
        largest[f"past_key_values.{layer}.value"] = np.abs(values).max((0, 2))
    return largest


def test_a_bundle_with_an_int8_cache_says_what_it_needs(exported):
    float32, int8, _ = exported
    manifest = Manifest.read(int8)

    assert {s.past: s.dtype for s in manifest.states} == {
        s.past: "int8" if s.kind == "cache" else "float32" for s in Manifest.read(float32).states
    }
    assert manifest.graph.minimum_onnxruntime == "1.27.0"
    assert Manifest.read(float32).graph.minimum_onnxruntime == "1.20.1"
    with pytest.raises(BundleError, match=r"needs onnxruntime >= 1\.27\.0, found 1\.26\.0; run"):
        check_version("1.26.0", manifest)


def test_the_weights_are_those_of_the_float_bundle(exported):
    """Only the graph is written again."""
    float32, int8, _ = exported

    assert (int8 / "model.onnx.data").read_bytes() == (float32 / "model.onnx.data").read_bytes()


def test_steps_give_the_logits_of_one_pass(exported):
    """Logits reach 19; a code that tips moves some by hundredths. Measured: no difference."""
    _, int8, _ = exported
    ids = oracles.load("gqa3").input_ids[0]
    with load(int8) as model:
        whole = model.logits(ids)
        row = Row(model._session)
        steps = np.stack([row.step([i]).copy() for i in ids])

    assert distance(steps, whole) < 0.1


def test_an_int8_cache_stays_close_to_the_float_one(exported):
    """Random weights are a hard case. Measured: 2.6 % of the logits' deviation on average."""
    ids = oracles.load("gqa3").input_ids[0]
    with load(exported[0]) as float32, load(exported[1]) as int8:
        expected, found = float32.logits(ids), int8.logits(ids)

    assert 0 < np.abs(found - expected).mean() < 0.04 * expected.std()


def test_the_self_test_of_an_int8_cache_passes(exported):
    _, folder, _ = exported
    pipeline.with_self_test(Manifest.read(folder), folder)

    with load(folder) as model:
        assert model.self_test().passed


def test_caches_are_measured_in_floating_point(exported):
    _, int8, _ = exported
    manifest = Manifest.read(int8)

    with pytest.raises(EvaluationError, match=r"caches of .*-fp32 are int8 already; measure the"):
        cache_scales(int8, manifest, WINDOWS)


@pytest.mark.parametrize(
    ("largest", "expected"),
    [
        ([[0.0, 2.54], [0.0, 0.0]], [[0.02, 0.02], [1 / 127, 1 / 127]]),
        ([[1.27, 2.54]], [[0.01, 0.02]]),
    ],
)
def test_a_channel_that_was_always_zero_gets_a_scale_of_its_head(largest, expected):
    found = scales_for(np.asarray(largest, np.float32))

    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32


@given(arrays.arrays(np.float32, (2, 6), elements=st.floats(0, 2.0**127, width=32)))
def test_scales_are_always_positive_and_hold_what_was_seen(largest):
    scales = scales_for(largest)

    assert (np.isfinite(scales) & (scales > 0)).all()
    assert (np.rint(largest / scales) <= 127).all()


@pytest.mark.slow
def test_the_demo_loses_little_by_its_cache(tmp_path):
    """Float weights, so that all loss is the cache's. Measured: 1.0e-4, 1.0001, 0.992."""
    model, texts = find_model(Source(variant="demo")), texts_to_measure(None)
    choice = CalibrationOptions()
    windows = calibration_windows(model, packaged_calibration(), choice, texts).windows
    export(demo_folder(), tmp_path / "demo", windows)

    drop = measure_accuracy(tmp_path / "demo", model, texts, Silent()).drop

    assert 0 < drop.kl_nats.mean < 1.3e-4
    assert 0.999 < drop.ppl_ratio < 1.001
    assert drop.top1_agreement > 0.989
