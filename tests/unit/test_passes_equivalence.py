"""Every pass leaves the numbers, the names and, when it runs again, everything as it is."""

import functools

import numpy as np
import onnx_ir as ir
import pytest
from support import oracles
from support.graphs import GraphRunner, distance

from wiola_export.lower import cleanup, structure
from wiola_export.options import Quantization
from wiola_export.passes.lower_weights import LowerWeights
from wiola_export.passes.ort_kernels import OrtKernels
from wiola_export.passes.standard_kernels import StandardKernels
from wiola_export.prepare import make_policy

CASES = ("lookback1", "lookback3", "mha", "odd_sizes", "nano_like", "post_rope_gate", "moment_odd")
TOLERANCE = 2e-4
FLOATS = {"cpu": "fp32", "cuda": "fp16", "portable": "fp32"}


def passes(target):
    """Return new passes of a target in their order."""
    policy = make_policy(Quantization(precision=FLOATS[target]), target)
    kernels = StandardKernels() if target == "portable" else OrtKernels()
    return (*structure(target, policy, 128), LowerWeights(policy, kernels), *cleanup())


NAMES = [type(p).__name__ for p in passes("cpu")]
FIRST_CLEANUP = len(structure("cpu", make_policy(Quantization(precision="fp32"), "cpu"), 128)) + 1


def picture(model):
    """Return all that a pass could change, as text."""
    initializers = [
        f"{name}: {value.dtype} {value.shape} {id(value.const_value)}"
        for name, value in model.graph.initializers.items()
    ]
    return "\n".join([str(model.graph), *map(str, model.functions.values()), *initializers])


def io(model):
    return [value.name for value in (*model.graph.inputs, *model.graph.outputs)]


@functools.cache
def expected(name):
    """Return the logits of the semantic graph and the sums it hands on."""
    case = oracles.load(name)
    return GraphRunner(oracles.semantic(case)).in_chunks(case.input_ids[:, :20], [9, *[1] * 11])


def check_same(model, name):
    """Prefill, then decode: the same logits and sums as the semantic graph."""
    case = oracles.load(name)
    ids = case.input_ids[:, :20]
    logits, found = GraphRunner(model).in_chunks(ids, [9, *[1] * 11])
    before, outputs = expected(name)
    assert distance(logits, before) < TOLERANCE
    for output, value in outputs.items():
        if "summary" in output:
            np.testing.assert_allclose(found[output], value, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", range(1, len(NAMES) + 1), ids=NAMES)
def test_the_numbers_stay(count, name):
    """After each pass of the list, with all passes before it."""
    model = oracles.semantic(oracles.load(name))

    ir.passes.Sequential(*passes("cpu")[:count])(model)

    check_same(model, name)


@pytest.mark.parametrize("name", ["odd_sizes", "wide_ffn"])
@pytest.mark.parametrize("index", range(FIRST_CLEANUP), ids=NAMES[:FIRST_CLEANUP])
def test_a_pass_alone_keeps_the_numbers(index, name):
    """No pass needs another one to be right."""
    model = oracles.semantic(oracles.load(name))

    passes("cpu")[index](model)

    check_same(model, name)


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("name", CASES)
def test_a_second_run_changes_nothing(name, target):
    model = oracles.semantic(oracles.load(name))
    names = io(model)

    for rewrite in passes(target):
        rewrite(model)
        before = picture(model)
        again = rewrite(model)

        assert not again.modified, type(rewrite).__name__
        assert picture(model) == before, type(rewrite).__name__
        assert io(model) == names, type(rewrite).__name__


@pytest.mark.parametrize("target", FLOATS)
def test_a_fresh_pass_changes_nothing_in_a_lowered_graph(target):
    model, _ = oracles.lowered(
        oracles.load("lookback3"), target, Quantization(precision=FLOATS[target])
    )
    before = picture(model)

    for rewrite in passes(target):
        assert not rewrite(model).modified, type(rewrite).__name__

    assert picture(model) == before


@pytest.mark.parametrize("name", ["lookback1", "untied"])
def test_passes_on_one_model_do_not_touch_its_copy(name):
    case = oracles.load(name)
    one, other = oracles.semantic(case), oracles.semantic(case)
    before = str(other.graph)

    ir.passes.Sequential(*passes("cuda"))(one)

    assert str(other.graph) == before
