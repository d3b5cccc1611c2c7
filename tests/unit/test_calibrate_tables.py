"""Tables are rounded on what the head reads, as far as that pays.

Axes: W windows, T tokens of a window, V vocabulary, d hidden size.
"""

import dataclasses
from unittest import mock

import numpy as np
import pytest
import torch
from support import oracles
from support.progress import Recording

from wiola_export.calibrate import tables
from wiola_export.calibrate.calibration import calibrate
from wiola_export.options import Quantization, Source
from wiola_export.prepare import make_policy
from wiola_export.quantize.formats import Blocks, Floats
from wiola_export.quantize.rounding import round_matrix
from wiola_export.reference import open_executor, read_tensor
from wiola_export.source import find_model

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
COARSE, FINE = Blocks(bits=4, block_size=32), Blocks(bits=8, block_size=32)


@pytest.fixture(scope="module")
def open_case(tmp_path_factory):
    """Return the model of an oracle case."""

    def opened(name):
        folder = tmp_path_factory.mktemp(name) / "checkpoint"
        oracles.write_checkpoint(oracles.load(name), folder)
        return find_model(Source(checkpoint=folder))

    return opened


def windows_of(name, count=6):
    """Return windows (W, 40) of ids of a case's vocabulary."""
    vocabulary = oracles.load(name).config.vocab_size
    return np.random.default_rng(7).integers(8, vocabulary, (count, 40))


def rounded(model, name, folder, planned, method="gptq"):
    """Calibrate with tables as planned; return what was rounded, and what was told."""
    policy = make_policy(Quantization(precision="int4", method=method), "cpu")
    policy = dataclasses.replace(policy, planned=planned)
    folder.mkdir()
    progress = Recording()
    return calibrate(model, windows_of(name), method, policy, folder, progress).rounded, progress


def head_inputs(model, name):
    """Return what the float head reads, (W·T, d), and what stands before its norm."""
    executor = open_executor(model, lambda tensor: read_tensor(model, tensor))
    weights = executor.head_weights()
    with torch.no_grad():
        hidden = executor.embed(torch.from_numpy(windows_of(name)), weights)
        for layer in executor.layers():
            hidden = layer.run(hidden)
        table, x = executor.head_reads(hidden, weights)
        logits = executor.head(hidden, weights)
    return table, x, logits


def matrix_of(spooled):
    return spooled.read(0, spooled.rows).matrix(spooled.blocks * spooled.form.block_size)


def error(weight, codes_matrix, x):
    """Return the squared error of the logits, summed over tokens."""
    difference = codes_matrix[:, : weight.shape[1]] - weight
    return float(np.square(x.reshape(-1, x.shape[-1]) @ difference.T).sum())


@pytest.mark.parametrize(("name", "table"), [("gqa3", EMBEDDING), ("untied", HEAD)])
def test_the_head_reads_what_makes_the_logits(open_case, name, table):
    model = open_case(name)

    found, x, logits = head_inputs(model, name)

    assert found == table
    torch.testing.assert_close(x @ read_tensor(model, table).T, logits)


def test_a_coarse_tied_table_costs_fewer_logits_than_rounded_to_nearest(open_case, tmp_path):
    model = open_case("gqa3")
    spool, progress = rounded(model, "gqa3", tmp_path / "c", {EMBEDDING: COARSE})

    weight = read_tensor(model, EMBEDDING).numpy()
    _, x, _ = head_inputs(model, "gqa3")
    nearest = round_matrix(weight, spool[EMBEDDING].form).matrix(weight.shape[1])
    assert error(weight, matrix_of(spool[EMBEDDING]), x.numpy()) < 0.8 * error(
        weight, nearest, x.numpy()
    )
    assert "running the float model" in progress.stages


def test_a_lookup_that_outweighs_all_leaves_nearest_rounding(open_case, tmp_path):
    """The diagonal that stands for lookups is the metric of nearest rounding."""
    model = open_case("gqa3")
    with mock.patch.object(tables, "LOOKUP_SHARE", 1e6):
        spool, _ = rounded(model, "gqa3", tmp_path / "c", {EMBEDDING: COARSE})

    weight = read_tensor(model, EMBEDDING).numpy()
    nearest = round_matrix(weight, spool[EMBEDDING].form)
    found = spool[EMBEDDING].read(0, len(weight))
    assert (found.codes == nearest.codes).mean() > 0.999


@pytest.mark.parametrize("form", [FINE, Floats("float32")])
def test_a_tied_table_that_loses_little_is_left_alone(open_case, tmp_path, form):
    spool, progress = rounded(open_case("gqa3"), "gqa3", tmp_path / "c", {EMBEDDING: form})

    assert EMBEDDING not in spool
    assert "running the float model" not in progress.stages


@pytest.mark.parametrize("form", [FINE, COARSE])
def test_a_head_of_its_own_is_rounded_on_the_quantized_model(open_case, tmp_path, form):
    """It costs no run of its own, so it is done at any number of bits; the embedding is not."""
    model = open_case("untied")
    spool, _ = rounded(model, "untied", tmp_path / "c", {HEAD: form, EMBEDDING: COARSE})

    weight = read_tensor(model, HEAD).numpy()
    nearest = round_matrix(weight, spool[HEAD].form)
    assert spool[HEAD].form.bits == form.bits
    assert EMBEDDING not in spool
    assert (spool[HEAD].read(0, len(weight)).codes != nearest.codes).any()


def test_scaling_alone_leaves_tables_to_nearest_rounding(open_case, tmp_path):
    spool, _ = rounded(open_case("untied"), "untied", tmp_path / "c", {HEAD: COARSE}, "awq")

    assert not {HEAD, EMBEDDING} & spool.keys()
