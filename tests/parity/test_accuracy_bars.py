"""What quantization costs the demo, on the packaged texts, through the runtime that ships.

The bars are the project's promises; the measured figures stand beside them.
"""

import pytest
from support import oracles

from wiola_export.measure import measure_accuracy, texts_to_measure
from wiola_export.options import Quantization, Source
from wiola_export.progress import Silent
from wiola_export.source import find_model

pytestmark = pytest.mark.slow

# Precision: mean KL in nats, ratio of perplexities, share of equal best tokens.
BARS = {"int8": (4e-4, 1.002, 0.98), "int4": (1.35e-2, 1.01, 0.91)}


def measured(folder, precision):
    """Export the demo and compare it with its checkpoint."""
    oracles.demo_bundle(folder, Quantization(precision=precision))
    return measure_accuracy(
        folder, find_model(Source(variant="demo")), texts_to_measure(None), Silent()
    ).drop


@pytest.mark.parametrize("precision", BARS)
def test_the_demo_stays_within_its_bars(tmp_path, precision):
    """Measured without calibration: int8 2.6e-4, 1.0003, 0.987; int4 1.25e-2, 1.0043, 0.922."""
    drop = measured(tmp_path / "demo", precision)

    kl_nats, ppl_ratio, top1 = BARS[precision]
    assert drop.kl_nats.mean <= kl_nats
    assert 0.99 < drop.ppl_ratio <= ppl_ratio
    assert drop.top1_agreement >= top1
    assert drop.tokens > 16_000


def test_floats_lose_nothing(tmp_path):
    """The demo is stored in float16, to which the reference is rounded."""
    drop = measured(tmp_path / "demo", "fp32")

    assert drop.kl_nats.max < 1e-6
    assert drop.top1_agreement > 0.999
    assert abs(drop.ppl_ratio - 1) < 1e-6
