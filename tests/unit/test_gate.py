"""An export that misses its limit says by how much and why, and leaves nothing."""

import dataclasses

import pytest
from support.manifests import ACCURACY, MACHINE, SPEED, manifest

from wiola_export import cli
from wiola_export.errors import AccuracyError, OptionError
from wiola_export.gate import require_accuracy, worst
from wiola_export.options import Budget, ExportOptions, Quantization, Source
from wiola_export.report import make_report

KL = ACCURACY.drop.kl_nats.mean
RATIO = ACCURACY.drop.ppl_ratio


def report():
    return make_report(manifest(), accuracy=ACCURACY, speed=SPEED, machine=MACHINE)


@pytest.mark.parametrize("budget", [Budget(), Budget(max_kl=KL), Budget(max_ppl_ratio=RATIO)])
def test_what_keeps_its_limit_passes(budget):
    require_accuracy(report(), budget)


@pytest.mark.parametrize(
    ("budget", "start"),
    [
        (Budget(max_kl=KL / 2), "mean KL divergence is "),
        (Budget(max_ppl_ratio=1 + (RATIO - 1) / 2), "ratio of perplexities is "),
    ],
)
def test_what_misses_it_is_refused(budget, start):
    with pytest.raises(AccuracyError) as refused:
        require_accuracy(report(), budget)

    assert str(refused.value).startswith(start)
    assert "nothing was written. Tensors that cost most: " in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "way_out"),
    [
        ({}, "Give them more bits in a --plan, or raise the limit"),
        (
            {"scheme": "dynamic", "method": None},
            "Give --smooth 0.75 or --scheme weight-only, or raise the limit",
        ),
        (
            {"scheme": "static", "method": None, "smoothing": 0.75},
            "Give --scheme weight-only, or raise the limit",
        ),
    ],
)
def test_the_way_out_is_one_that_the_scheme_has(changes, way_out):
    spec = manifest()
    stored = dataclasses.replace(spec.quantization, **changes)
    spec = dataclasses.replace(spec, quantization=stored)
    found = make_report(spec, accuracy=ACCURACY, speed=SPEED, machine=MACHINE)

    with pytest.raises(AccuracyError) as refused:
        require_accuracy(found, Budget(max_kl=KL / 2))

    assert str(refused.value).endswith(f". {way_out}")


def test_a_figure_that_is_no_number_is_no_pass():
    drop = dataclasses.replace(
        ACCURACY.drop, kl_nats=dataclasses.replace(ACCURACY.drop.kl_nats, mean=float("nan"))
    )
    broken = dataclasses.replace(report(), accuracy=dataclasses.replace(ACCURACY, drop=drop))

    with pytest.raises(AccuracyError, match=r"^mean KL divergence is nan"):
        require_accuracy(broken, Budget(max_kl=1.0))


def test_the_worst_come_first_and_floats_are_not_to_blame():
    tensors = report().tensors
    costs = {tensor.name: float(i) for i, tensor in enumerate(tensors)}
    ranked = [dataclasses.replace(t, sensitivity_nats=costs[t.name]) for t in tensors]
    floats = dataclasses.replace(ranked[-1], bits=32)

    named = worst([*ranked[:-1], floats])

    expected = sorted(
        (t.name.removesuffix(".weight") for t in ranked[:-1] if t.bits <= 8),
        key=lambda name: -costs.get(f"{name}.weight", costs.get(name, 0)),
    )
    assert named == expected[:5]


@pytest.mark.slow
def test_the_command_ends_with_3_and_leaves_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("It is a truth universally acknowledged. " * 60)
    command = ["--variant", "demo", "--int4", "--calibration", "none", "--max-kl", "1e-4"]

    code = cli.main([*command, "--text", str(text), "--out", "small", "--quiet"])

    assert code == 3
    assert capsys.readouterr().err.startswith("wiola-export: error: mean KL divergence is ")
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


WRONG = {
    "--bits-per-weight is 3; expected 4 to 32": {"bits_per_weight": 3.0},
    "--max-kl is 0; expected more than 0": {"max_kl": 0.0},
    "--max-kl is nan; expected more than 0": {"max_kl": float("nan")},
    "--max-ppl-ratio is 1; expected more than 1": {"max_ppl_ratio": 1.0},
}


@pytest.mark.parametrize(("message", "fields"), WRONG.items(), ids=WRONG)
def test_a_budget_out_of_range_is_refused(message, fields):
    with pytest.raises(OptionError) as refused:
        Budget(**fields)

    assert str(refused.value) == message


def test_a_budget_without_effect_is_refused():
    int4 = Quantization(precision="int4")
    demo, unknown = Source(variant="demo"), Source(variant="120m")
    bits, limit = Budget(bits_per_weight=5.0), Budget(max_kl=0.1)

    with pytest.raises(OptionError, match=r"^--bits-per-weight needs trained weights and a text"):
        ExportOptions(source=unknown, quantization=int4, budget=bits)
    with pytest.raises(OptionError, match=r"^--bits-per-weight needs --int8 or --int4"):
        ExportOptions(source=demo, quantization=Quantization(precision="fp32"), budget=bits)
    with pytest.raises(OptionError, match="have no effect: random weights have no accuracy"):
        ExportOptions(source=unknown, quantization=int4, budget=limit)
    with pytest.raises(OptionError, match="have no effect: --no-report measures none"):
        ExportOptions(source=demo, quantization=int4, budget=limit, report=False)
