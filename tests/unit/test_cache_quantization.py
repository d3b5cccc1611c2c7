"""Keys and values in 8 bits: what the kernel stores, what the pass changes, what the runtime does.

Axes: B row, T new positions, K key heads, H query heads, D channels, C cache capacity.
"""

import dataclasses
import json

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import oracles
from support.graphs import run_nodes
from support.tiny_bundle import HEAD_SIZE, TinyBundle, vocab_size

from wiola_export.errors import LoweringError
from wiola_export.evaluate.cache_scales import scales_for
from wiola_export.options import Quantization
from wiola_export.passes.quantize_cache import QuantizeCache
from wiola_runtime import Manifest, load
from wiola_runtime.row import Row
from wiola_runtime.scoring import score

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
        LoweringError, match=r"past_key_values\.0\.key is read by Abs, GroupQueryAttention; as"
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
    expected = score(opened._engine.graph, opened.manifest, IDS[None], 600)[0]
    row = Row(opened._engine.graph)
    starts = range(0, IDS.size, chunk)

    logits = np.stack([row.step(IDS[start : start + chunk]).copy() for start in starts])

    ends = [min(start + chunk, IDS.size) - 1 for start in starts]
    np.testing.assert_allclose(logits, expected[ends], atol=CHUNK_TOLERANCE)


def test_windows_score_as_they_do_alone(opened):
    windows = IDS[:300].reshape(3, 100)

    for together, window in zip(opened.logits(windows), windows, strict=True):
        np.testing.assert_allclose(together, opened.logits(window), atol=CHUNK_TOLERANCE)


def test_rows_decode_together_at_their_own_lengths(opened):
    rows, lengths = [Row(opened._engine.graph) for _ in range(2)], (3, 9)
    for row, length in zip(rows, lengths, strict=True):
        row.step(IDS[:length])
    state = opened._engine.graph.start(2)
    state.lengths[:] = lengths
    for index in range(3):
        parts = [row.state.past[index].numpy() for row in rows]
        state.past[index].update_inplace(np.concatenate(parts))

    logits = opened._engine.graph.run(state, IDS[[[3], [9]]], np.asarray([0]))

    expected = opened.logits(IDS[:10])[list(lengths)]
    np.testing.assert_allclose(logits[:, 0], expected, atol=CHUNK_TOLERANCE)


def test_a_cache_takes_a_quarter_of_the_bytes(opened, tmp_path):
    with load(TinyBundle().write(tmp_path / "float32")) as other:
        sizes = [
            [buffer.numpy().nbytes for buffer in model._engine.graph.start().past[:2]]
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
