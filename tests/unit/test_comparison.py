"""Checkpoint, float graph and bundles run over the same windows, and each step is told apart."""

import dataclasses
import re
import tempfile
from unittest import mock

import numpy as np
import pytest
from support import float_graphs, oracles
from support.manifests import MACHINE
from support.progress import Recording

from wiola_calibration.corpus import packaged_text, user_text
from wiola_export import comparison, contest
from wiola_export.comparison import Exported, compare_with_checkpoint, obstacle
from wiola_export.contest import stored_name
from wiola_export.measure import measure
from wiola_export.options import Quantization, Source
from wiola_export.progress import Silent
from wiola_export.report import make_report, to_markdown
from wiola_export.report.verdict import UNFAITHFUL
from wiola_export.source import demo_folder, find_model
from wiola_runtime.manifest import Manifest

INT8, INT4 = Quantization(precision="int8"), Quantization(precision="int4")
FP32 = Quantization(precision="fp32")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison") / "checkpoint"
    return oracles.write_checkpoint(oracles.load("gqa3"), folder)


@pytest.fixture(scope="module")
def model(checkpoint):
    return find_model(Source(checkpoint=checkpoint))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Two texts of different lengths, of about nine and three windows."""
    folder = tmp_path_factory.mktemp("texts")
    packaged = packaged_text("austen").path.read_text("utf-8")
    for name, size in (("long.txt", 2800), ("short.txt", 900)):
        (folder / name).write_text(packaged[:size], "utf-8")
    return [user_text(folder / name) for name in ("long.txt", "short.txt")]


@pytest.fixture(scope="module")
def bundles(checkpoint, tmp_path_factory):
    root = tmp_path_factory.mktemp("bundles")
    found = {}
    for name, quantization in (("int8", INT8), ("int4", INT4), ("fp32", FP32)):
        folder = oracles.write_bundle(checkpoint, root / name, "cpu", quantization)
        found[name] = Exported(folder=folder, manifest=Manifest.read(folder))
    return found


@pytest.fixture(scope="module")
def graphs(checkpoint):
    """A graph is written once, so every use gets a new one."""
    return lambda: {"cpu": float_graphs.builder(checkpoint)("cpu")}


@pytest.fixture(scope="module")
def accuracy(bundles, model, texts, graphs):
    return compare_with_checkpoint([bundles["int8"]], model, texts, graphs(), Silent())[0]


def test_the_ladder_leads_from_the_checkpoint_to_the_bundle(accuracy):
    ladder = accuracy.ladder
    rounding, graph, bundle = ladder.rungs[1:]

    assert [rung.name for rung in ladder.rungs] == ["checkpoint", "float16", "graph", "bundle"]
    assert ladder.is_faithful
    assert 0 < graph.kl_nats < 1e-7 < rounding.kl_nats < bundle.kl_nats
    assert (ladder.graph_missing, ladder.windows) == ("", accuracy.drop.windows)


def test_every_text_is_measured_by_itself(accuracy, bundles, model, texts):
    alone = compare_with_checkpoint([bundles["int8"]], model, texts[1:], {}, Silent())[0]

    assert [drop.windows for drop in accuracy.by_text] == [t.windows for t in accuracy.texts]
    assert accuracy.by_text[1] == alone.drop
    assert alone.by_text == ()


def test_the_float_graph_and_the_bundle_continue_the_same_prompts(accuracy):
    assert len(accuracy.continuations) == 6
    assert all(one.tokens == 64 for one in accuracy.continuations)


def test_several_bundles_are_each_measured_as_alone(accuracy, bundles, model, texts, graphs):
    several = [bundles["int4"], bundles["int8"]]

    found = compare_with_checkpoint(several, model, texts, graphs(), Silent())

    assert found[1] == accuracy
    assert found[0].drop.kl_nats.mean > 10 * accuracy.drop.kl_nats.mean


def test_a_ladder_on_fewer_windows_leaves_the_drop_as_it_is(
    accuracy, bundles, model, texts, graphs, monkeypatch
):
    monkeypatch.setattr(contest, "WHOLE_LADDER_BYTES", 0)
    monkeypatch.setattr(contest, "LADDER_WINDOWS_PER_TEXT", 3)

    found = compare_with_checkpoint([bundles["int8"]], model, texts, graphs(), Silent())[0]

    assert found.drop == accuracy.drop
    assert found.by_text == accuracy.by_text
    assert found.ladder.windows == 3 + 3
    assert found.ladder.is_faithful


def test_a_wrong_constant_of_the_export_is_found_at_the_conversion(model, texts, tmp_path):
    """Graph and bundle turn by another rotary base than the checkpoint was trained with."""
    wrong = dataclasses.replace(model.config, srpe_theta=40.0)
    broken = dataclasses.replace(model, config=wrong)
    folder = float_graphs.write_bundle(broken, tmp_path / "bundle", INT8)
    bundle = Exported(folder=folder, manifest=Manifest.read(folder))
    graphs = {"cpu": float_graphs.build(broken, "cpu")}

    accuracy = compare_with_checkpoint([bundle], model, texts, graphs, Silent())[0]

    ladder = accuracy.ladder
    _, rounding, graph, quantized = ladder.rungs
    assert ladder.is_faithful is False
    assert graph.kl_nats > 0.01
    assert quantized.kl_nats < graph.kl_nats / 10
    assert rounding.kl_nats < 1e-4
    report = make_report(bundle.manifest, accuracy=accuracy, speed=None, machine=MACHINE)
    assert to_markdown(report).splitlines()[2].startswith(f"**{UNFAITHFUL}: do not judge")


def test_a_graph_that_is_too_large_is_left_out_with_the_reason(
    bundles, model, texts, graphs, monkeypatch
):
    monkeypatch.setattr(comparison, "LARGEST_GRAPH_BYTES", 1 << 10)

    found = compare_with_checkpoint([bundles["int8"]], model, texts, graphs(), Silent())[0]

    assert re.fullmatch(
        r"its float weights take \d\.\d MiB, more than the 1\.0 KiB that are measured",
        found.ladder.graph_missing,
    )
    assert found.ladder.rungs[-1].compared_with == "float16"
    assert found.ladder.is_faithful is None
    assert found.continuations == ()


def test_a_graph_for_which_there_is_no_room_is_left_out(graphs, monkeypatch):
    full = mock.Mock(return_value=mock.Mock(free=99))
    monkeypatch.setattr(comparison.shutil, "disk_usage", full)

    assert obstacle(graphs()["cpu"]).endswith(f", and {tempfile.gettempdir()} has 99 B free")


def test_a_bundle_that_is_not_quantized_is_the_graph_itself(bundles, model, texts, graphs):
    found = compare_with_checkpoint([bundles["fp32"]], model, texts, graphs(), Silent())[0]

    assert found.ladder.graph_missing == "the bundle itself is not quantized"
    assert found.ladder.rungs[-1].compared_with == "checkpoint"
    assert found.ladder.is_faithful


def test_nothing_is_said_of_a_graph_that_was_not_given():
    assert obstacle(None) == "no graph with float weights was given"


def test_a_checkpoint_in_float16_is_the_reference_itself(model):
    assert stored_name(model) == contest.CHECKPOINT
    assert stored_name(find_model(Source(checkpoint=demo_folder()))) == contest.REFERENCE


def test_progress_counts_every_block(bundles, model, texts, monkeypatch):
    monkeypatch.setattr(contest, "WHOLE_LADDER_BYTES", 0)
    monkeypatch.setattr(contest, "LADDER_WINDOWS_PER_TEXT", 2)
    watcher = Recording()

    compare_with_checkpoint([bundles["int8"]], model, texts, {}, watcher)

    assert watcher.items == watcher.total > 1
    assert watcher.stages == ["comparing with the checkpoint", "comparing what they write"]


def test_a_large_vocabulary_is_scored_in_smaller_blocks():
    assert contest.block_windows(256, 4096) == 8
    assert contest.block_windows(256, 32_000) == 2
    assert contest.block_windows(256, 10**6) == 1


def test_a_report_holds_all_that_is_known_of_a_bundle(bundles, model, texts, checkpoint):
    bundle = bundles["int8"]
    name = bundle.manifest.quantization.tensors[3].name

    report = measure(
        bundle.folder,
        bundle.manifest,
        model,
        texts,
        Silent(),
        float_graph=float_graphs.builder(checkpoint),
        sensitivity={name: 0.25},
    )

    assert all(tensor.relative_error > 0 for tensor in report.tensors)
    assert [t.sensitivity_nats for t in report.tensors if t.name == name] == [0.25]
    assert report.accuracy.ladder.is_faithful
    assert report.speed.decode_tokens_per_second > 0


def test_errors_of_rescaled_weights_are_left_out_with_the_reason(model, texts, tmp_path):
    """Columns of one matrix are larger, as a calibration leaves them."""
    weights = dict(oracles.load("gqa3").weights)
    name = "model.layers.0.attn.o_proj.weight"
    weights[name] = weights[name] * np.linspace(0.5, 2, weights[name].shape[1], dtype=np.float32)
    scaled = find_model(
        Source(
            checkpoint=oracles.write_checkpoint(oracles.load("gqa3"), tmp_path / "scaled", weights)
        )
    )
    folder = float_graphs.write_bundle(scaled, tmp_path / "bundle", INT8)

    report = measure(
        folder,
        Manifest.read(folder),
        model,
        texts,
        Silent(),
        float_graph=lambda target: float_graphs.build(model, target),
    )

    assert report.errors_missing.startswith("calibration has scaled them")
    assert {tensor.relative_error for tensor in report.tensors} == {None}
    assert report.errors_missing in to_markdown(report)
