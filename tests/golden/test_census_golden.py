"""How many nodes of each kind a target's graph has: a lost fusion shows here first."""

import collections

import pytest
from support import oracles

from wiola_export.families import find_variant
from wiola_export.lower import lower
from wiola_export.options import Quantization
from wiola_export.prepare import make_policy
from wiola_export.weights import RandomSource, StoredWeight, bind

FORMS = [
    ("cpu", "int8"),
    ("cpu", "fp32"),
    ("cuda", "fp16"),
    ("cuda", "int4"),
    ("portable", "int8"),
]


def census(graph):
    names = (f"{n.domain or 'ai.onnx'}::{n.op_type}" for n in graph)
    counted = collections.Counter(names)
    rows = [f"{count:5} {name}" for name, count in sorted(counted.items())]
    return "\n".join([*rows, f"{sum(counted.values()):5} nodes", ""])


@pytest.mark.parametrize(("target", "precision"), FORMS)
def test_a_small_case(golden, target, precision):
    """Six layers, lookback 2, three query heads to a group."""
    model, _ = oracles.lowered(oracles.load("gqa3"), target, Quantization(precision=precision))

    golden(f"census_{target}_{precision}.txt", census(model.graph))


def test_the_semantic_graph(golden):
    golden("census_semantic.txt", census(oracles.semantic(oracles.load("gqa3")).graph))


def test_gated_spiral_attention(golden):
    """Four layers."""
    case = oracles.load("nano_like")
    model, _ = oracles.lowered(case, "cpu", Quantization(precision="int8"))

    golden("census_gsa_semantic.txt", census(oracles.semantic(case).graph))
    golden("census_gsa_cpu_int8.txt", census(model.graph))


@pytest.mark.parametrize(("target", "precision"), [("cpu", "int8"), ("cuda", "fp16")])
def test_moments(golden, target, precision):
    """Four layers; on the CPU one attention for both moments, on CUDA plain operators."""
    case = oracles.load("moment_deep")
    model, _ = oracles.lowered(case, target, Quantization(precision=precision))

    golden("census_moment_semantic.txt", census(oracles.semantic(case).graph))
    golden(f"census_moment_{target}_{precision}.txt", census(model.graph))


def test_the_120m_size_as_it_runs(golden):
    """Twelve layers; no weight is read."""
    family, config = find_variant("120m")
    model = oracles.shared_trace(family, config)
    source = RandomSource(config.tensor_shapes(), config.initial_values())
    bind(model, lambda name, shape: StoredWeight(source, name, shape))
    policy = make_policy(Quantization(precision="int8"), "cpu")

    lowered, _ = lower(model, "cpu", policy, context_length=config.max_position_embeddings)

    golden("census_120m_cpu_int8.txt", census(lowered.graph))
