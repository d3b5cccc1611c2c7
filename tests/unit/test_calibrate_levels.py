"""One channel that has the others of its block rounded away is seen, and told with the way out."""

import pytest
import torch

from wiola_export.calibrate.levels import lost_in_blocks, lost_too_much

WEIGHTS = [torch.ones(5, 96), torch.ones(3, 96)]


def outlier(size):
    """Return mean squares of features of which one is so much larger."""
    features = torch.ones(96)
    features[40] = size
    return features.square()


def test_features_alike_lose_the_error_of_a_step_each():
    assert lost_in_blocks(outlier(1), WEIGHTS, 32) == pytest.approx(1 / 127**2 / 12)


def test_an_outlier_of_no_more_weight_costs_its_block():
    """As in a checkpoint whose channel is 300 times as large, and read 300 times as small."""
    weights = [weight.clone() for weight in WEIGHTS]
    for weight in weights:
        weight[:, 40] /= 300

    lost = lost_in_blocks(outlier(300), weights, 32)

    step = (300 / 127) ** 2 / 12
    assert lost == pytest.approx(step * 31 / 96, rel=0.02)


def test_an_outlier_that_makes_the_product_costs_little():
    """The others are rounded away, and nobody misses them."""
    assert lost_in_blocks(outlier(300), WEIGHTS, 32) < 1e-3


def test_the_unit_does_not_matter_and_the_last_block_may_be_shorter():
    squares = outlier(20)

    assert lost_in_blocks(squares * 1e-9, WEIGHTS, 40) == pytest.approx(
        lost_in_blocks(squares, WEIGHTS, 40), rel=1e-4
    )
    assert lost_in_blocks(torch.zeros(96), WEIGHTS, 32) == 0


def test_the_worst_input_is_named_with_the_way_out():
    losses = {"a.weight": 0.0001, "b.weight": 0.021, "c.weight": 0.3}

    assert lost_too_much(losses, "gptq") == (
        "single channels dwarf the others in 2 of 3 inputs: of what c makes of its input, 8-bit "
        "activations lose 30.0%; take --method awq-gptq, or give --max-kl to refuse what is lost"
    )
    assert "; keep them float in a --plan, or give --max-kl" in lost_too_much(losses, "awq-gptq")
    assert lost_too_much({"a.weight": 0.0039}, "gptq") is None
