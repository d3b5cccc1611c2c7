"""One channel that dwarfs the others of its block is seen, and told with the way out."""

import pytest
import torch

from wiola_export.calibrate.levels import block_levels, too_few_in_block


@pytest.mark.parametrize(("outlier", "levels"), [(1, 127.0), (10, 12.7), (300, 127 / 300)])
def test_levels_are_those_of_the_typical_feature_beside_the_largest(outlier, levels):
    features = torch.ones(96)
    features[40] = outlier

    assert block_levels(features.square(), 32) == pytest.approx(levels)


def test_a_block_that_is_large_throughout_dwarfs_nobody():
    features = torch.ones(64)
    features[32:] = 1000

    assert block_levels(features.square(), 32) == pytest.approx(127)


def test_the_last_block_may_be_shorter_and_the_unit_does_not_matter():
    features = torch.ones(40)
    features[39] = 64

    assert block_levels(features.square() * 1e-9, 32) == pytest.approx(127 / 64, rel=1e-5)


def test_features_that_were_never_seen_do_not_count():
    features = torch.zeros(64)
    features[:5] = 3.0

    assert block_levels(features, 32) == pytest.approx(127)
    assert block_levels(torch.zeros(8), 32) == 127


def test_the_worst_input_is_named_with_the_way_out():
    levels = {"a.weight": 30.0, "b.weight": 1.26, "c.weight": 0.42}

    assert too_few_in_block(levels) == (
        "single channels dwarf the others in 2 of 3 inputs: half of what c reads stays within 0.4 "
        "of 127 steps in one block; take --method awq-gptq, or give --max-kl to refuse what is lost"
    )
    assert too_few_in_block({"a.weight": 2.1}) is None
