"""The scales of an 8-bit cache, and a bundle from their measurement to its self-test."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import oracles
from support.graphs import GraphRunner, distance

from wiola_calibration import packaged_calibration
from wiola_export import bundle, pipeline
from wiola_export.errors import EvaluationError
from wiola_export.evaluate.cache_scales import cache_scales, scales_for
from wiola_export.measure import measure_accuracy, texts_to_measure
from wiola_export.options import CalibrationOptions, ExportOptions, Quantization, Source
from wiola_export.passes.quantize_cache import QuantizeCache
from wiola_export.prepare import calibration_windows
from wiola_export.progress import Silent
from wiola_export.serialize import write_graph, write_model
from wiola_export.source import demo_folder, find_model
from wiola_runtime import BundleError, Manifest, load
from wiola_runtime.devices import check_version
from wiola_runtime.row import Row

FP32 = Quantization(precision="fp32")
WINDOWS = np.random.default_rng(3).integers(8, 256, (4, 40))


def export(checkpoint, folder, windows=None):
    """Write a float32 bundle; where there are windows, measure its caches and quantize them."""
    source = Source(checkpoint=checkpoint)
    options, model = ExportOptions(source=source, quantization=FP32), find_model(source)
    with mock.patch("wiola_export.trace.trace", oracles.shared_trace):
        graph, stored = pipeline.build_graph(model, options, Silent())
    folder.mkdir()
    write_model(graph, folder, Silent())
    bundle.copy_tokenizer(model, folder)
    scales = {}
    if windows is not None:
        manifest = bundle.describe(model, options, graph.graph, stored)
        scales = cache_scales(folder, manifest, windows)
        QuantizeCache(scales)(graph)
        write_graph(graph, folder)
    bundle.write_manifest(bundle.describe(model, options, graph.graph, stored), folder)
    return scales


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return (float32 folder, int8 folder, scales) of one oracle case."""
    base = tmp_path_factory.mktemp("exported")
    checkpoint = oracles.write_checkpoint(oracles.load("gqa3"), base / "checkpoint")
    export(checkpoint, base / "float32")
    return base / "float32", base / "int8", export(checkpoint, base / "int8", WINDOWS)


def test_scales_are_those_of_the_largest_key_and_value(exported):
    """Both channels of a rotated pair get the pair's largest radius."""
    folder, _, scales = exported
    caches = [s.past for s in Manifest.read(folder).states if s.kind == "cache"]

    expected = largest_in(folder)

    assert scales.keys() == set(caches)
    for name in caches:
        np.testing.assert_allclose(scales[name], expected[name] / 127, rtol=1e-6)


def largest_in(folder):
    """Return the largest value of a channel, and radius of a key's pair, (K, D) by cache."""
    runner = GraphRunner(folder / "model.onnx")
    _, found = runner.all_at_once(WINDOWS)
    largest = {}
    for layer in range(6):
        keys, values = (found[f"present.{layer}.{what}"][:, :, :40] for what in ("key", "value"))
        radius = np.sqrt(keys[..., :8] ** 2 + keys[..., 8:] ** 2).max((0, 2))
        largest[f"past_key_values.{layer}.key"] = np.tile(radius, (1, 2))
        largest[f"past_key_values.{layer}.value"] = np.abs(values).max((0, 2))
    return largest


def test_a_bundle_with_an_int8_cache_says_what_it_needs(exported):
    float32, int8, _ = exported
    manifest = Manifest.read(int8)

    assert {s.past: s.dtype for s in manifest.states} == {
        s.past: "int8" if s.kind == "cache" else "float32" for s in Manifest.read(float32).states
    }
    assert manifest.graph.minimum_onnxruntime == "1.27.0"
    assert Manifest.read(float32).graph.minimum_onnxruntime == "1.20.1"
    with pytest.raises(BundleError, match=r"needs onnxruntime >= 1\.27\.0, found 1\.26\.0; run"):
        check_version("1.26.0", manifest)


def test_the_weights_are_those_of_the_float_bundle(exported):
    """Only the graph is written again."""
    float32, int8, _ = exported

    assert (int8 / "model.onnx.data").read_bytes() == (float32 / "model.onnx.data").read_bytes()


def test_steps_give_the_logits_of_one_pass(exported):
    """Logits reach 19; a code that tips moves some by hundredths. Measured: no difference."""
    _, int8, _ = exported
    ids = oracles.load("gqa3").input_ids[0]
    with load(int8) as model:
        whole = model.logits(ids)
        row = Row(model._engine.graph)
        steps = np.stack([row.step([i]).copy() for i in ids])

    assert distance(steps, whole) < 0.1


def test_an_int8_cache_stays_close_to_the_float_one(exported):
    """Random weights are a hard case. Measured: 2.6 % of the logits' deviation on average."""
    ids = oracles.load("gqa3").input_ids[0]
    with load(exported[0]) as float32, load(exported[1]) as int8:
        expected, found = float32.logits(ids), int8.logits(ids)

    assert 0 < np.abs(found - expected).mean() < 0.04 * expected.std()


def test_the_self_test_of_an_int8_cache_passes(exported):
    _, folder, _ = exported
    pipeline.with_self_test(Manifest.read(folder), folder)

    with load(folder) as model:
        assert model.self_test().passed


def test_caches_are_measured_in_floating_point(exported):
    _, int8, _ = exported
    manifest = Manifest.read(int8)

    with pytest.raises(EvaluationError, match=r"caches of .*-fp32 are int8 already; measure the"):
        cache_scales(int8, manifest, WINDOWS)


@pytest.mark.parametrize(
    ("largest", "expected"),
    [
        ([[0.0, 2.54], [0.0, 0.0]], [[0.02, 0.02], [1 / 127, 1 / 127]]),
        ([[1.27, 2.54]], [[0.01, 0.02]]),
    ],
)
def test_a_channel_that_was_always_zero_gets_a_scale_of_its_head(largest, expected):
    found = scales_for(np.asarray(largest, np.float32))

    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32


@given(arrays.arrays(np.float32, (2, 6), elements=st.floats(0, 2.0**127, width=32)))
def test_scales_are_always_positive_and_hold_what_was_seen(largest):
    scales = scales_for(largest)

    assert (np.isfinite(scales) & (scales > 0)).all()
    assert (np.rint(largest / scales) <= 127).all()


@pytest.mark.slow
def test_the_demo_loses_little_by_its_cache(tmp_path):
    """Float weights, so that all loss is the cache's. Measured: 1.0e-4, 1.0001, 0.992."""
    model, texts = find_model(Source(variant="demo")), texts_to_measure(None)
    choice = CalibrationOptions()
    windows = calibration_windows(model, packaged_calibration(), choice, texts).windows
    export(demo_folder(), tmp_path / "demo", windows)

    drop = measure_accuracy(tmp_path / "demo", model, texts, Silent()).drop

    assert 0 < drop.kl_nats.mean < 1.3e-4
    assert 0.999 < drop.ppl_ratio < 1.001
    assert drop.top1_agreement > 0.989
