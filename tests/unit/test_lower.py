"""A target's graph: what may be in it, what it promises, and what cannot be lowered."""

import collections
import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support import oracles
from support.graphs import ALL_LEVELS, GraphRunner, distance, to_bytes

from wiola_export.errors import LoweringError
from wiola_export.lower import lower, prove_lowered, structure
from wiola_export.options import Quantization
from wiola_export.prepare import make_policy
from wiola_export.quantize.formats import SignedRows
from wiola_export.quantize.policy import Policy

FORMS = [
    ("cpu", Quantization(precision="fp32")),
    ("cpu", Quantization(precision="int8")),
    ("cpu", Quantization(precision="int4")),
    ("cpu", Quantization(precision="int8", scheme="dynamic")),
    ("cuda", Quantization(precision="fp16")),
    ("cuda", Quantization(precision="int8")),
    ("cuda", Quantization(precision="int4", symmetric=True)),
    ("portable", Quantization(precision="fp32")),
    ("portable", Quantization(precision="int8")),
    ("portable", Quantization(precision="int4", block_size=16)),
]
every_form = pytest.mark.parametrize(
    ("target", "form"),
    FORMS,
    ids=[f"{t}-{f.precision}-{f.resolved_scheme}" for t, f in FORMS],
)


@every_form
def test_only_the_targets_operators_are_left(target, form):
    model, _ = oracles.lowered(oracles.load("gqa3"), target, form)

    domains = {""} if target == "portable" else {"", "com.microsoft"}
    assert {node.domain for node in model.graph} == domains
    assert set(model.graph.opset_imports) == domains
    assert not model.functions


@every_form
def test_versions_are_pinned(target, form):
    """Newer ones would not load in the oldest onnxruntime that the manifest names."""
    model, _ = oracles.lowered(oracles.load("gqa3"), target, form)

    assert model.ir_version == 10
    assert model.graph.opset_imports[""] == 21
    assert model.graph.opset_imports.get("com.microsoft", 1) == 1


@every_form
def test_inputs_and_outputs_are_those_of_the_contract(target, form):
    case = oracles.load("gqa3")
    model, _ = oracles.lowered(case, target, form)

    names = [value.name for value in model.graph.inputs]
    states = case.config.states()
    assert names == ["input_ids", "past_lengths", "output_positions", *(s.past for s in states)]
    assert [v.name for v in model.graph.outputs] == ["logits", *(s.present for s in states)]
    logits = model.graph.outputs[0]
    assert logits.dtype == ir.DataType.FLOAT
    half = ir.DataType.FLOAT16 if target == "cuda" else ir.DataType.FLOAT
    for value, state in zip(model.graph.inputs[3:], states, strict=True):
        assert value.dtype == (ir.DataType.FLOAT if state.kind == "sum" else half), state.past
    for value, state in zip(model.graph.outputs[1:], states, strict=True):
        assert value.dtype == (ir.DataType.FLOAT if state.kind == "sum" else half), state.past


@pytest.mark.parametrize(
    "form", [f for t, f in FORMS if t == "portable"], ids=lambda form: form.precision
)
def test_the_checker_accepts_the_portable_graph(form):
    """Kernels of onnxruntime have no schema in onnx, so it cannot check the others."""
    model, _ = oracles.lowered(oracles.load("untied"), "portable", form)

    onnx.checker.check_model(onnx.load_from_string(to_bytes(model)), full_check=True)


@every_form
def test_every_linear_and_lookup_is_listed_and_quantized(target, form):
    """No matrix stays float unless its reason is given."""
    case = oracles.load("gqa3")
    _, stored = oracles.lowered(case, target, form)

    matrices = {name for name, array in case.weights.items() if array.ndim == 2}
    unused = {f"model.layers.0.attn.{name}_ctx_proj.weight" for name in "kv"}
    assert {name for tensor in stored for name in tensor.sources} == matrices - unused
    if not form.is_float:
        assert {t.bits for t in stored if "(" not in t.name} == {form.bits}
        assert {t.bits for t in stored if "(" in t.name} == {8}
    shared = [t.name for t in stored if t.note == "shares the bytes of the embedding"]
    assert shared == ["model.embed_tokens.weight (head)"]


def test_kept_weights_are_listed_with_the_reason():
    """120 features are no multiple of 16, so the table cannot be stored in blocks."""
    _, stored = oracles.lowered(oracles.load("odd_sizes"), "cpu", Quantization(precision="int8"))

    kept = {t.name: t.note for t in stored if t.bits > 8}
    assert kept == {
        "model.embed_tokens.weight (embedding)": "kept: 120 features are no multiple of 16",
        "model.embed_tokens.weight (head)": "shares the bytes of the embedding",
    }
    assert all(t.bits == 8 and not t.note for t in stored if t.name not in kept)


@pytest.mark.parametrize("target", ["cpu", "cuda", "portable"])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_quantized_odd_sizes_stay_close(target, precision):
    """Features of 120, 72 and 200: every matrix ends in a block that is not full.

    Random weights are the hardest to round; a row out of place would give an error of 1.
    """
    case = oracles.load("odd_sizes")

    model, _ = oracles.lowered(case, target, Quantization(precision=precision, block_size=32))

    found, _ = GraphRunner(model).all_at_once(case.input_ids)
    error = np.sqrt(((found - case.logits) ** 2).mean()) / case.logits.std()
    assert error < {"int8": 0.06, "int4": 0.5}[precision]


@every_form
def test_optimization_levels_agree(target, form):
    """A fusion of onnxruntime may not change the result, but for what it rounds.

    From the third level on it multiplies 8-bit activations by the codes of a portable graph.
    """
    case = oracles.load("gqa3")
    model, _ = oracles.lowered(case, target, form)
    # The kernels that keep 8-bit sums exact without VNNI come with the optimizer's upper levels.
    wanted = ALL_LEVELS[2:] if form.resolved_scheme == "dynamic" else ALL_LEVELS
    levels = [GraphRunner(model, level=level) for level in wanted]

    results = [runner.all_at_once(case.input_ids[:, :20])[0] for runner in levels]

    tolerance = 0.1 if target == "cuda" else 2e-4
    # A rounded activation may fall on the other side of a half when float sums differ a little.
    if not form.is_float:
        tolerance = max(tolerance, 0.8 if target == "portable" else 0.25)
    assert all(distance(one, results[0]) < tolerance for one in results)


@pytest.mark.parametrize(("name", "parameters"), [("gqa3", 1.02), ("untied", 1.02)])
@pytest.mark.parametrize("target", ["cpu", "portable"])
def test_a_tied_table_is_stored_once(name, parameters, target):
    case = oracles.load(name)
    model, _ = oracles.lowered(case, target, Quantization(precision="fp32"))

    unused = [w for n, w in case.weights.items() if "layers.0.attn" in n and "_ctx_" in n]
    needed = sum(w.nbytes for w in case.weights.values()) - sum(w.nbytes for w in unused)
    found = {id(v.const_value): v.const_value.nbytes for v in model.graph.initializers.values()}
    tables = 2 * 4 * case.config.max_position_embeddings * case.config.head_dim // 2
    assert sum(found.values()) - (tables if target == "cpu" else 0) <= parameters * needed


@pytest.mark.parametrize("precision", ["fp16", "int4"])
def test_the_cuda_graph_holds_no_float32_matrix(precision):
    """Its float32 weights are the norms' vectors, nothing else."""
    case = oracles.load("gqa3")
    model, stored = oracles.lowered(case, "cuda", Quantization(precision=precision))

    sizes = collections.Counter()
    for value in model.graph.initializers.values():
        sizes[value.dtype] += value.const_value.nbytes
        assert value.dtype != ir.DataType.FLOAT or value.const_value.shape.rank() < 2, value
    vectors = [w for w in case.weights.values() if w.ndim == 1]
    assert sizes[ir.DataType.FLOAT] <= 2 * sum(w.nbytes for w in vectors) + 64
    if precision == "fp16":
        matrices = sum(math.prod(t.shape) for t in stored if not t.note)
        tables = 2 * case.config.max_position_embeddings * case.config.head_dim // 2
        assert 0 <= sizes[ir.DataType.FLOAT16] - 2 * (matrices + tables) <= 64
        assert {t.bits for t in stored} == {16}


def test_a_scheme_without_a_portable_form_is_refused():
    policy = Policy(matrices=SignedRows(), tables=SignedRows(), floats="float32")
    model = oracles.semantic(oracles.load("gqa3"))

    with pytest.raises(LoweringError, match=r"^SignedRows has no form in plain ai\.onnx operators"):
        lower(model, "portable", policy, context_length=256)


@pytest.mark.parametrize("target", ["cpu", "cuda", "portable"])
def test_an_operator_that_no_pass_knows_is_named(target):
    """Its call has no body that could be written out."""
    model = oracles.semantic(oracles.load("untied"))
    logits = model.graph.outputs[0]
    stranger = ir.node("Mystery", [logits], domain="wiola")
    stranger.outputs[0].name = "strange"
    stranger.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    model.graph.append(stranger)
    model.graph.outputs[0] = stranger.outputs[0]
    policy = make_policy(Quantization(precision="fp32"), target)

    with pytest.raises(LoweringError) as caught:
        lower(model, target, policy, context_length=128)

    assert str(caught.value) == (
        f"target {target} has no form of wiola::Mystery; add a pass to its list"
    )


def test_a_foreign_operator_is_not_portable():
    model, _ = oracles.lowered(oracles.load("untied"), "cpu", Quantization(precision="fp32"))

    with pytest.raises(LoweringError, match=r"^target portable has no form of com\.microsoft::"):
        prove_lowered(model, "portable")


POLICY = make_policy(Quantization(precision="fp32"), "cpu")


def test_a_target_is_a_list_that_can_be_read():
    names = {
        t: [type(p).__name__ for p in structure(t, POLICY, 64)] for t in ("cpu", "cuda", "portable")
    }

    assert names["portable"] == []
    shared = [
        "FoldBlend", "PackLinears", "UnitGain", "FuseNorms", "FuseRotary", "MergeRotary",
        "FuseAttention", "FuseContext", "FuseActivations",
    ]  # fmt: skip
    assert names["cpu"] == [*shared, "FuseMoments"]
    assert names["cuda"] == [*shared, "HalfPrecision"]
