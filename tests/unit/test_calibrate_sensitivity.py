"""What a rounding costs by the Fisher information is what it costs when it is done."""

import numpy as np
import pytest
import torch
from support import oracles

from wiola_export.calibrate.mixed import candidates, plan_bits
from wiola_export.calibrate.sensitivity import measure_sensitivity
from wiola_export.errors import OptionError
from wiola_export.options import Budget, ExportOptions, Quantization, Source
from wiola_export.prepare import make_policy
from wiola_export.progress import Silent
from wiola_export.quantize.formats import Blocks, Floats
from wiola_export.quantize.plan import stored_bytes
from wiola_export.quantize.rounding import round_matrix
from wiola_export.reference import open_executor, read_tensor
from wiola_export.source import find_model

FORM = Blocks(bits=8, block_size=16)
TESTED = (
    "model.embed_tokens.weight",
    "model.layers.1.attn.v_proj.weight",
    "model.layers.2.attn.o_proj.weight",
    "model.layers.2.attn.v_ctx_proj.weight",
    "model.layers.0.ffn.down_b.weight",
    "model.layers.3.ffn.fusion.weight",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gqa3") / "checkpoint"
    oracles.write_checkpoint(oracles.load("gqa3"), folder)
    return find_model(Source(checkpoint=folder))


@pytest.fixture(scope="module")
def windows(model):
    return np.random.default_rng(3).integers(8, model.config.vocab_size, (96, 24))


@pytest.fixture(scope="module")
def costs(model, windows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("states")

    def forms(_role, _name, shape):
        return [FORM] if len(shape) == 2 else []

    return measure_sensitivity(model, windows, forms, folder, Silent())


def measured(model, windows, name):
    """Return the mean divergence when one tensor is rounded and the model is run."""

    def read(wanted):
        weight = read_tensor(model, wanted)
        if wanted != name:
            return weight
        rounded = round_matrix(weight.numpy(), FORM).matrix(weight.shape[1])
        return torch.from_numpy(rounded)

    rows = []
    executors = open_executor(model, lambda wanted: read_tensor(model, wanted))
    for p, q in zip(
        executors.logits(windows), open_executor(model, read).logits(windows), strict=True
    ):
        a, b = (torch.from_numpy(x).double().log_softmax(-1) for x in (p, q))
        rows.append((a.exp() * (a - b)).sum(-1).mean().item())
    return float(np.mean(rows))


@pytest.mark.parametrize("name", TESTED)
def test_the_estimate_is_near_the_measured_divergence(model, windows, costs, name):
    """96 windows are 96 samples of a squared normal: a deviation of 15 %, and 3 of them."""
    expected = measured(model, windows, name)

    assert costs[name][FORM] == pytest.approx(expected, rel=0.45)


def test_two_streams_of_logits_consumed_in_turn_leave_gradients_on(model, windows):
    streams = (
        open_executor(model, lambda name: read_tensor(model, name)).logits(windows[:16])
        for _ in range(2)
    )

    for _ in zip(*streams, strict=True):
        assert torch.is_grad_enabled()

    assert torch.is_grad_enabled()


def test_what_nothing_reads_is_not_listed(costs):
    assert "model.layers.0.attn.k_ctx_proj.weight" not in costs
    assert "model.layers.1.attn.k_ctx_proj.weight" in costs


def test_candidates_fill_rows_and_have_the_asked_bits_or_eight():
    policy = make_policy(Quantization(precision="int4"), "cpu")

    forms = candidates(policy, "matrix", (8, 96))

    assert {(form.bits, form.block_size) for form in forms} == {
        (bits, size) for bits in (4, 8) for size in (16, 32)
    }
    assert candidates(make_policy(Quantization(precision="fp32"), "cpu"), "matrix", (8, 96)) == ()


def test_rows_that_no_block_fills_are_padded_by_the_least():
    """A table's rows lie beside each other, so there it cannot be."""
    policy = make_policy(Quantization(precision="int4"), "cpu")

    forms = candidates(policy, "matrix", (8, 129))

    assert {(form.bits, form.block_size) for form in forms} == {(4, 16), (8, 16)}
    assert candidates(policy, "embedding", (8, 129)) == []


def test_matrices_of_short_rows_have_no_candidates():
    policy = make_policy(Quantization(precision="int4"), "cpu")

    assert candidates(policy, "matrix", (8, 32)) == ()
    assert candidates(policy, "embedding", (8, 32)) != ()
    assert candidates(policy, "matrix", (8,)) == ()


def test_candidates_of_a_table_are_those_that_the_target_looks_up():
    policy = make_policy(Quantization(precision="int4"), "portable")

    widths = {
        role: {form.bits for form in candidates(policy, role, (8, 96))}
        for role in ("matrix", "embedding")
    }

    assert widths == {"matrix": {4, 8}, "embedding": {8}}


def int4(model, budget):
    source = Source(checkpoint=model.checkpoint.folder)
    return ExportOptions(source=source, quantization=Quantization(precision="int4"), budget=budget)


def test_a_budget_of_bits_is_spent_and_one_too_small_refused(model, windows, tmp_path):
    policy = make_policy(Quantization(precision="int4"), "cpu")
    shapes = model.config.tensor_shapes()

    def plan(bits):
        folder = tmp_path / str(bits)
        folder.mkdir()
        options = int4(model, Budget(bits_per_weight=bits))
        return plan_bits(model, windows[:8], policy, options, folder, Silent()).plan

    small, large = plan(6.0), plan(8.0)
    for bits, found in ((6.0, small), (8.0, large)):
        weights = sum(np.prod(shapes[name]) for name in found.forms)
        spent = sum(stored_bytes(shapes[name], form) for name, form in found.forms.items())
        assert bits - 0.5 < spent * 8 / weights <= bits
    assert large.kl_nats < small.kl_nats
    with pytest.raises(OptionError, match=r"^--bits-per-weight is 4, but .* needs [4-6]\.\d+ in"):
        plan(4.0)


def test_a_limit_that_rounding_cannot_hold_keeps_floats(model, windows, tmp_path):
    policy = make_policy(Quantization(precision="int8"), "cpu")
    options = int4(model, Budget(max_kl=1e-12))

    found = plan_bits(model, windows[:8], policy, options, tmp_path, Silent()).plan

    assert any(isinstance(form, Floats) for form in found.forms.values())
    assert found.kl_nats <= 1e-12
