"""What a quantized bundle keeps of the promises of a float one.

Weight-only schemes round activations block by block of one row, `dynamic` row by row: rows and
chunks stay independent.
"""

import numpy as np
import pytest
from support import oracles
from support.graphs import GraphRunner, distance

import wiola_runtime as wr
from wiola_export.options import Quantization
from wiola_runtime.scoring import score

INT8, INT4 = Quantization(precision="int8"), Quantization(precision="int4")
DYNAMIC = Quantization(precision="int8", scheme="dynamic")
FORMS = {"int8": INT8, "int4": INT4, "dynamic": DYNAMIC}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
families = pytest.mark.parametrize("name", ["gqa3", "wide_ffn"])


def error(found, expected):
    """Return the root mean square of the difference, as a share of the logits' deviation."""
    gap = (np.asarray(found, np.float64) - expected) ** 2
    return float(np.sqrt(gap.mean()) / expected.std())


def runner(form, name="gqa3"):
    return GraphRunner(oracles.lowered(oracles.load(name), "cpu", form)[0])


@every_form
@families
def test_cached_and_full_passes_agree(name, form):
    """A rounded activation on the edge may fall to the other side; nothing more."""
    ids, graph = oracles.load(name).input_ids, runner(form, name)

    full, _ = graph.all_at_once(ids)

    for sizes in ([1] * 48, [7] * 6 + [6], [32, *[1] * 16]):
        chunked, _ = graph.in_chunks(ids[:1], sizes)
        assert error(chunked, full[:1]) < 0.02


@every_form
@families
def test_a_neighbour_with_outliers_changes_nothing(name, form):
    ids, graph = oracles.load(name).input_ids[:, :30], runner(form, name)
    other = ids.copy()
    other[1] = np.roll(ids[1], 11)

    before, after = graph.all_at_once(ids)[0], graph.all_at_once(other)[0]

    assert error(after[0], before[0]) < 0.01
    assert distance(after[1], before[1]) > 1


@pytest.mark.parametrize(("form", "largest"), [(INT8, 0.05), (INT4, 0.5), (DYNAMIC, 0.1)])
@pytest.mark.parametrize(
    "name", ["gqa3", "lookback3", "odd_sizes", "untied", *oracles.names_of("gsa")]
)
def test_the_result_stays_close_to_the_package(name, form, largest):
    """Random weights are the hardest to round; a lost matrix would give an error of 1."""
    case = oracles.load(name)

    found, _ = runner(form, name).all_at_once(case.input_ids)

    assert error(found, case.logits) < largest


@pytest.mark.parametrize("target", ["cpu", "cuda", "portable"])
def test_features_that_are_no_whole_blocks_run_as_a_bundle(tmp_path, target):
    """120 features: the table stays float and is listed, all else is quantized."""
    case = oracles.load("odd_sizes")
    checkpoint = oracles.write_checkpoint(case, tmp_path / "checkpoint")
    out = oracles.write_bundle(checkpoint, tmp_path / "bundle", target, INT8)

    with wr.load(out) as model:
        found = model.logits(case.input_ids)
        stepped = score(model._engine.graph, model.manifest, case.input_ids, 1)
        kept = {t.name: t.note for t in model.manifest.quantization.tensors if t.bits > 8}

    assert error(found, case.logits) < 0.06
    assert error(stepped, found) < 0.04
    assert kept == {
        "model.embed_tokens.weight (embedding)": "kept: 120 features are no multiple of 16",
        "model.embed_tokens.weight (head)": "shares the bytes of the embedding",
    }
