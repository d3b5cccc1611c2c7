"""Speed is measured in a process that holds the runtime and nothing of ours."""

import dataclasses
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from support.tiny_bundle import TinyBundle, vocab_size

from wiola_export.errors import EvaluationError
from wiola_export.evaluate import speed_worker
from wiola_export.evaluate.machine import cpu_features, cpu_model, this_machine
from wiola_export.evaluate.speed import Speed, measure_speed

X86 = """processor\t: 0
model name\t: AMD EPYC 9004
flags\t\t: fpu sse2 avx avx2 avx512f avx512_vnni

processor\t: 1
model name\t: another
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm sve\n"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A bundle in which any token would end a reply."""
    folder = tmp_path_factory.mktemp("speed") / "tiny"
    return TinyBundle(context_length=96, eos_ids=tuple(range(vocab_size()))).write(folder)


@pytest.fixture(scope="module")
def speed(bundle):
    return measure_speed(bundle, threads=1)


def test_every_figure_is_there(speed):
    assert speed.load_seconds > 0
    assert speed.first_token_seconds > 0
    assert speed.prefill_tokens_per_second > 0
    assert (speed.repeats, speed.threads, speed.provider) == (3, 1, "CPUExecutionProvider")


def test_an_end_token_does_not_end_what_is_timed(speed):
    assert speed.decode_tokens_per_second > 0


def test_lengths_fit_the_context(speed):
    assert (speed.prefill_tokens, speed.decode_tokens) == (48, 48)


def test_the_worker_prints_the_figures_and_nothing_else(bundle, capsys):
    request = {"bundle": str(bundle), "device": "cpu", "threads": 1}

    assert speed_worker.main(json.dumps(request)) == 0
    printed = capsys.readouterr()
    assert set(json.loads(printed.out)) == {f.name for f in dataclasses.fields(Speed)}
    assert not printed.err


def test_the_worker_says_why_there_are_no_figures(tmp_path, capsys):
    request = {"bundle": str(tmp_path), "device": "cpu", "threads": None}

    assert speed_worker.main(json.dumps(request)) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path}/manifest.json not found")


def run_python(program):
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_worker_imports_the_runtime_and_nothing_above_it():
    program = (
        f"import sys, runpy; runpy.run_path({speed_worker.__file__!r}); "
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    loaded = set(run_python(program).split())

    assert "wiola_runtime" in loaded
    assert not loaded & {"wiola_export", "wiola_calibration", "torch", "onnx", "onnx_ir"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="VmHWM is Linux's")
def test_memory_is_the_childs_own_and_not_what_the_parent_holds(speed):
    ballast = np.ones(100 << 20, np.float32)
    program = (
        f"import runpy; names = runpy.run_path({speed_worker.__file__!r}); "
        "print(names['peak_memory_bytes']())"
    )
    peak = int(run_python(program))

    assert 10 << 20 < peak < ballast.nbytes
    assert 10 << 20 < speed.peak_memory_bytes < ballast.nbytes
    assert speed_worker.peak_memory_bytes() > ballast.nbytes


def test_memory_is_none_where_the_system_does_not_say(monkeypatch, tmp_path):
    monkeypatch.setattr(speed_worker, "Path", lambda _: tmp_path / "none")
    monkeypatch.setattr(speed_worker.sys, "platform", "win32")

    assert speed_worker.peak_memory_bytes() is None


def test_a_bundle_that_cannot_be_run_is_named_with_the_reason(tmp_path):
    message = (
        f"{tmp_path} could not be run (exit code 2): {tmp_path}/manifest.json not found; "
        f"is {tmp_path} an exported bundle?"
    )
    with pytest.raises(EvaluationError, match=f"^{re.escape(message)}$"):
        measure_speed(tmp_path)


def test_a_worker_that_dies_is_named_with_its_last_words(bundle, monkeypatch, tmp_path):
    script = tmp_path / "worker.py"
    script.write_text("import sys; sys.exit('first\\nout of paper')")
    monkeypatch.setattr(speed_worker, "__file__", str(script))

    message = f"{bundle} could not be run (exit code 1): out of paper"
    with pytest.raises(EvaluationError, match=f"^{re.escape(message)}$"):
        measure_speed(bundle)


def test_the_cpu_is_read_from_cpuinfo():
    assert cpu_model(X86) == "AMD EPYC 9004"
    assert cpu_features(X86) == ("avx2", "avx512f", "avx512_vnni")
    assert cpu_features(ARM) == ("asimddp", "i8mm", "sve")
    assert (cpu_model(""), cpu_features("")) == ("", ())


def test_this_machine_names_what_computes():
    machine = this_machine()

    assert machine.cpu
    assert machine.logical_cpus >= 1
    assert machine.versions["numpy"] == np.__version__
    assert "python" in machine.versions
