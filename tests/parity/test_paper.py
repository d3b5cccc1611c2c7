"""Each package is what its paper writes; the other grouping of heads exports too."""

import dataclasses

import numpy as np
import pytest
from support import oracles, paper, paper_gsa
from support.graphs import GraphRunner, distance

from wiola_export.lower import lower
from wiola_export.options import Quantization
from wiola_export.prepare import make_policy

TOLERANCE = 2e-4
TOKENS = 24
PAPERS = {"gcla": paper, "gsa": paper_gsa}


@pytest.mark.parametrize("name", [n for f in PAPERS for n in oracles.names_of(f)])
def test_the_package_computes_what_the_paper_writes(name):
    case = oracles.load(name)

    found = PAPERS[case.family.name].logits(case.config, case.weights, case.input_ids[0, :TOKENS])

    assert distance(found, case.logits[0, :TOKENS]) < TOLERANCE


@pytest.mark.parametrize("target", ["semantic", "cpu", "portable"])
@pytest.mark.parametrize("name", ["gqa3", "lookback3", "untied"])
def test_interleaved_groups(name, target):
    """Head h reads group h mod K: the same graph with its heads permuted on the way in."""
    case = oracles.load(name)
    config = dataclasses.replace(case.config, gqa_grouping="interleaved")
    graph = oracles.semantic(case, config=config)
    if target != "semantic":
        policy = make_policy(Quantization(precision="fp32"), target)
        graph, _ = lower(graph, target, policy, context_length=128)

    found, _ = GraphRunner(graph).all_at_once(case.input_ids[:1, :TOKENS])

    expected = paper.logits(config, case.weights, case.input_ids[0, :TOKENS])
    assert distance(found[0], expected) < TOLERANCE
    assert distance(found[0], case.logits[0, :TOKENS]) > 1


def test_a_permuted_matrix_is_the_named_rows_and_columns():
    """Six heads in two groups: blocked heads 0, 1, 2 are the paper's heads 0, 2, 4."""
    config = dataclasses.replace(oracles.load("gqa3").config, gqa_grouping="interleaved")
    size = config.head_dim

    axis, order = config.reordered("model.layers.1.attn.q_proj.weight")

    assert axis == 0
    assert [i // size for i in order[::size]] == [0, 2, 4, 1, 3, 5]
    assert np.array_equal(np.asarray(order).reshape(-1, size) % size, [range(size)] * 6)
    assert config.reordered("model.layers.1.attn.o_proj.weight") == (1, order)
    assert config.reordered("model.layers.1.attn.gate_proj.weight") == (0, order)
    for name in ("attn.k_proj", "attn.v_ctx_proj", "ffn.gate_a"):
        assert config.reordered(f"model.layers.1.{name}.weight") is None
    assert config.reordered("model.layers.1.attn.blend_logit") is None
