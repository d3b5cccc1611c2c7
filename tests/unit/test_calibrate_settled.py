"""A layer that is run again and again makes each product once, and gives what it always gave."""

import pytest
import torch
from support import oracles
from support.layers import layers_of

from wiola_export.calibrate.settled import Settled
from wiola_export.calibrate.taps import input_of, matrices, stages
from wiola_export.families.layered import Matrix
from wiola_export.families.layerwise import Hidden


@pytest.mark.parametrize("name", oracles.NAMES)
@pytest.mark.parametrize("in_memory_bytes", [0, 1 << 20])
def test_inputs_and_outputs_are_those_of_plain_runs(name, in_memory_bytes, tmp_path):
    """While one stage after the other gets the weights that it keeps."""
    for index, (layer, hidden) in enumerate(layers_of(name)):
        groups = [hidden, Hidden(hidden.x.flip(1), hidden.carry)]
        settled = Settled(layer, tmp_path / str(index), in_memory_bytes)
        (tmp_path / str(index)).mkdir()
        weights = dict(layer.weights)
        with torch.no_grad():
            for stage in stages(layer, hidden):
                for group, given in enumerate(groups):
                    found = settled.input_of(stage[0], group, given, weights)
                    assert torch.equal(found, input_of(layer, stage[0], given, weights))
                weights |= {weight: weights[weight] * 0.5 for weight in stage}
            for group, given in enumerate(groups):
                x, plain = settled.run(group, given, weights).x, layer.run(given, weights).x
                assert torch.equal(x, plain)
        settled.clear()
        assert not list((tmp_path / str(index)).rglob("*.npy"))


def test_every_matrix_is_multiplied_once_for_each_group(monkeypatch, tmp_path):
    layer, hidden = layers_of("gqa3")[1]
    groups = stages(layer, hidden)
    settled = Settled(layer, tmp_path, 1 << 20)
    multiplied = []
    plain = Matrix.forward

    def counted(module, x):
        multiplied.append(module)
        return plain(module, x)

    monkeypatch.setattr(Matrix, "forward", counted)
    with torch.no_grad():
        for stage in groups:
            settled.input_of(stage[0], 0, hidden, layer.weights)
        settled.run(0, hidden, layer.weights)

    assert len(multiplied) == len(set(multiplied)) == len(matrices(layer))


def test_nothing_stays_attached_to_the_layer(tmp_path):
    layer, hidden = layers_of("mha")[1]
    settled = Settled(layer, tmp_path, 1 << 20)

    with torch.no_grad():
        settled.input_of("attn.o_proj.weight", 0, hidden, layer.weights)

    assert not any("forward" in vars(module) for module in layer.layer.modules())
