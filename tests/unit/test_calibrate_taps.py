"""What a matrix reads is seen as it is, and the layer is left as it was.

Axes: B batch, T positions, K input features.
"""

import pytest
import torch
from support import oracles
from support.layers import layers_of, run

from wiola_export.calibrate.taps import input_of, inputs_of, matrices, stages
from wiola_export.families.layered import Matrix

every_case = pytest.mark.parametrize("name", oracles.NAMES)
every_gcla_case = pytest.mark.parametrize("name", oracles.names_of("gcla"))
every_gsa_case = pytest.mark.parametrize("name", oracles.names_of("gsa"))
ATTENTION = tuple(f"attn.{part}_proj.weight" for part in ("q", "k", "v", "gate"))
CONTEXT = tuple(f"attn.{part}_ctx_proj.weight" for part in ("k", "v"))
STREAMS = tuple(f"ffn.{part}.weight" for part in ("gate_a", "up_a", "up_b"))
REST = [("ffn.down_a.weight",), ("ffn.down_b.weight",), ("ffn.fusion.weight",)]


@every_gcla_case
def test_weights_are_grouped_by_what_they_read_in_order_of_execution(name):
    """Layer 0 has no context to project."""
    for index, (layer, hidden) in enumerate(layers_of(name)):
        context = [CONTEXT] if index else []
        expected = [ATTENTION, *context, ("attn.o_proj.weight",), STREAMS, *REST]

        found = stages(layer, hidden)

        assert list(map(set, found)) == list(map(set, expected))
        assert sum(map(len, found)) == sum(map(len, expected))


@every_gsa_case
def test_a_gate_is_read_between_queries_and_output(name):
    gated = oracles.load(name).config.use_attention_gate
    gate = [(f"self_attn.gate_fc{i}.weight",) for i in (1, 2)] if gated else []
    attention, streams = (
        tuple(f"{place}_proj.weight" for place in places)
        for places in (("self_attn.q", "self_attn.k", "self_attn.v"), ("mlp.up", "mlp.bypass"))
    )
    rest = [("self_attn.o_proj.weight",), streams, ("mlp.down_proj.weight",)]

    for layer, hidden in layers_of(name):
        found = stages(layer, hidden)

        assert sorted(map(set, found), key=sorted) == sorted(
            map(set, [attention, *gate, *rest]), key=sorted
        )
        assert [set(group) for group in found[-3:]] == [set(group) for group in rest]


@every_case
def test_an_input_makes_what_the_layer_makes_of_it(name):
    """Multiplied by its weight it is the product that the layer computes, a bias aside."""
    for layer, hidden in layers_of(name):
        modules = dict(layer.layer.named_modules())
        for group in stages(layer, hidden):
            seen = []
            module = modules[group[0].removesuffix(".weight")]
            handle = module.register_forward_hook(lambda *given, to=seen: to.append(given[2]))
            with torch.no_grad():
                layer.run(hidden)
            handle.remove()

            x = input_of(layer, group[0], hidden, layer.weights)

            bias = layer.weights.get(group[0].replace(".weight", ".bias"), torch.zeros(()))
            torch.testing.assert_close(x @ layer.weights[group[0]].T + bias, seen[0])


def test_inputs_of_all_groups_are_those_seen_one_by_one():
    for layer, hidden in layers_of("gqa3")[:2]:
        groups = stages(layer, hidden)

        with torch.no_grad():
            found = inputs_of(layer, groups, hidden, layer.weights)

            assert list(found) == groups
            for group, x in found.items():
                for name in group:
                    assert torch.equal(x, input_of(layer, name, hidden, layer.weights))


def test_an_input_depends_on_the_weights_before_it_and_not_on_its_own():
    layer, hidden = layers_of("gqa3")[1]
    changed = dict(layer.weights)
    changed["attn.v_proj.weight"] = 2 * changed["attn.v_proj.weight"]

    with torch.no_grad():
        own, later = (
            [input_of(layer, name, hidden, weights) for weights in (layer.weights, changed)]
            for name in ("attn.v_proj.weight", "attn.o_proj.weight")
        )

    assert torch.equal(*own)
    assert not torch.equal(*later)


def test_nothing_stays_attached_to_the_layer():
    layer, hidden = layers_of("mha")[1]
    before = run(layer, hidden)

    stages(layer, hidden)
    input_of(layer, "attn.o_proj.weight", hidden, layer.weights)
    inputs_of(layer, stages(layer, hidden), hidden, layer.weights)

    assert not any(module._forward_pre_hooks for module in layer.layer.modules())
    assert all(map(torch.equal, run(layer, hidden), before))


@every_case
def test_every_matrix_of_a_layer_can_be_quantized(name):
    """All parameters of two axes; vectors and scalars are left alone."""
    for layer, _ in layers_of(name):
        found = matrices(layer)

        assert sorted(found) == sorted(n for n, w in layer.weights.items() if w.ndim == 2)
        assert len(found) == sum(isinstance(m, Matrix) for m in layer.layer.modules())
