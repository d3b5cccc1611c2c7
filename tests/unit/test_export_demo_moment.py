"""Everything that looks at a text works on the trained model with moments as well."""

from unittest import mock

import numpy as np
import pytest
from support import oracles

import wiola_runtime as wr
from wiola_calibration.corpus import packaged_text
from wiola_export import pipeline
from wiola_export.errors import LoweringError
from wiola_export.options import (
    Budget,
    CalibrationOptions,
    ExportOptions,
    Quantization,
    Source,
)
from wiola_export.study import worker
from wiola_export.study.grid import pick
from wiola_export.study.runner import Study

DEMO = Source(variant="demo-moment")
FEW, NONE = CalibrationOptions(windows=16), CalibrationOptions(source="none")
BITS = 6.5


@pytest.fixture(autouse=True, scope="module")
def _trace_once():
    with mock.patch("wiola_export.trace.trace", oracles.shared_trace):
        yield


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Return a file with the beginning of a packaged text: a few windows."""
    path = tmp_path_factory.mktemp("text") / "austen.txt"
    path.write_text(packaged_text("austen").path.read_text("utf-8")[:12_000], "utf-8")
    return path


def export(out, precision, *, calibration=FEW, scheme=None, **changes):
    return pipeline.export(
        ExportOptions(
            source=DEMO,
            quantization=Quantization(precision=precision, scheme=scheme),
            calibration=calibration,
            out=out,
            **({"report": False} | changes),
        )
    )


@pytest.fixture(scope="module")
def planned(tmp_path_factory, text):
    """Return a bundle calibrated by GPTQ with bits given by sensitivity, and its report."""
    out = tmp_path_factory.mktemp("planned") / "bundle"
    return export(out, "int4", budget=Budget(bits_per_weight=BITS), report=True, text=text)


def test_bits_are_spent_where_they_matter(planned):
    stored = planned.manifest.quantization.tensors
    weights = sum(np.prod(t.shape) for t in stored)

    assert {t.bits for t in stored} == {4, 8}
    assert 8 * sum(t.size_bytes for t in stored) / weights <= BITS


def test_the_report_says_what_every_matrix_costs(planned):
    figures = planned.report.tensors

    assert len(figures) == len(planned.manifest.quantization.tensors)
    assert all(tensor.sensitivity_nats > 0 for tensor in figures)
    assert all(tensor.relative_error > 0 for tensor in figures)
    assert planned.report.accuracy.drop.kl_nats.mean < 0.05


def test_every_matrix_belongs_to_a_known_part(planned):
    parts = set(planned.report.sizes.by_part)

    assert parts == {"attention", "feed-forward", "embedding and head", "vectors and alignment"}


@pytest.mark.parametrize("scheme", ["dynamic", "static"])
def test_8_bit_activations(tmp_path, scheme):
    bundle = export(tmp_path / "bundle", "int8", scheme=scheme)

    assert {t.bits for t in bundle.manifest.quantization.tensors} == {8}


def test_a_cache_in_8_bits_is_refused(tmp_path):
    with pytest.raises(LoweringError, match="keep it in floating point"):
        export(tmp_path / "bundle", "int8", int8_cache=True)

    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("target", "cache", "size"), [("cpu", "shared", 64), ("cuda", "growing", 32)]
)
def test_the_manifest_says_what_the_cache_is(tmp_path, target, cache, size):
    bundle = export(tmp_path / "bundle", "int8", calibration=NONE, target=target)

    manifest = bundle.manifest
    axis = {"shared": "C", "growing": "P"}[cache]
    assert (manifest.family, manifest.cache) == ("moment", cache)
    assert {state.axes for state in manifest.states} == {("B", 4, axis, size)}
    assert {state.dtype for state in manifest.states} == {"float32"}
    with wr.load(bundle.folder, device="cpu") as model:
        reply = model.generate("It is a truth", max_new_tokens=4, temperature=0.0)
    assert len(reply.token_ids) == 4


def test_a_cell_of_a_study_is_done(tmp_path, text):
    study = Study(source=DEMO, cells=pick("int8-nearest-64"), out=tmp_path, text=text)

    outcome = worker.do(study.tasks()[0])

    assert outcome.error is None
    assert outcome.figures.kl_nats < 1e-3
