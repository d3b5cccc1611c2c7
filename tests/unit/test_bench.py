"""Contestants are timed in turns, each round in a new process."""

import dataclasses
import json
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from support.progress import Recording
from support.tiny_bundle import TinyBundle

from wiola_export import bench
from wiola_export.bench import process
from wiola_export.bench.bandwidth import read_bandwidth
from wiola_export.bench.contest import Contestant, Measured, run_bench, run_once
from wiola_export.bench.contestants import contestants, read_peer, workload_for
from wiola_export.bench.pages import huge_pages
from wiola_export.bench.workload import Figures, Workload
from wiola_export.cli import app, main
from wiola_export.errors import EvaluationError, OptionError
from wiola_export.evaluate import speed_worker
from wiola_runtime.manifest import Manifest, QuantizedTensor

ROOT = Path(__file__).parents[2]
FIGURES = {
    "load_seconds": 0.25,
    "verify_seconds": None,
    "first_token_seconds": 0.125,
    "decode_tokens_per_second": 200.0,
    "deep_tokens_per_second": None,
    "prefill_tokens_per_second": 800.0,
    "imported_at": None,
    "ready_at": 1.0,
    "memory_bytes": 250_000_000,
    "weight_bytes": 90_000_000,
    "versions": {"engine": "1"},
}
# Prints its figures, decoding a little faster in every round; the file counts the rounds.
PEER = """
import json, pathlib, sys, time
count = pathlib.Path(sys.argv[1])
rounds = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(rounds))
print("warming up")
figures = json.loads(sys.argv[2]) | {"imported_at": time.time(), "ready_at": time.time()}
figures["decode_tokens_per_second"] *= rounds
assert json.loads(sys.argv[3])["threads"] == 1
print(json.dumps(figures))
"""
WORK = Workload(
    prompt_tokens=8,
    reply_tokens=8,
    prefill_tokens=16,
    depth_tokens=24,
    deep_reply_tokens=4,
    threads=1,
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench") / "tiny"
    return TinyBundle(context_length=96).write(folder)


@pytest.fixture
def peer(tmp_path):
    command = [sys.executable, "-c", PEER, str(tmp_path / "rounds"), json.dumps(FIGURES)]
    path = tmp_path / "peer.json"
    path.write_text(json.dumps({"name": "other engine", "command": command}))
    return path


def test_contestants_take_turns_and_medians_are_shown(bundle, peer):
    progress = Recording()
    found = run_bench(contestants([bundle], [peer]), WORK, 3, progress, timeout=60)
    ours, theirs = found.contestants

    assert [one.name for one in found.contestants] == ["tiny", "other engine"]
    assert theirs.values("decode_tokens_per_second") == [200.0, 400.0, 600.0]
    assert theirs.median("decode_tokens_per_second") == 400.0
    assert theirs.median("verify_seconds") is None
    pairs = zip(theirs.import_seconds, theirs.start_seconds, strict=True)
    assert all(0 < imported <= started < 60 for imported, started in pairs)
    assert ours.median("verify_seconds") > 0
    assert ours.median("deep_tokens_per_second") > 0
    assert found.threads == 1
    assert found.read_bytes_per_second > 0
    table = bench.to_table(found)
    assert table.rows[1][:4] == ("other engine", "400 (200–600)", "–", "800")
    assert table.rows[1][-1] == f"{400 * 90e6 / found.read_bytes_per_second:.2f}"
    assert json.loads(bench.to_json(found))["workload"]["prompt_tokens"] == 8
    assert "8 tokens behind 8, and 4 behind 24; prefill of 16; first token of 8." in bench.summary(
        found
    )


def test_versions_are_told_once_for_all_that_share_them():
    def measured(name, versions):
        rounds = (Figures(**(FIGURES | {"versions": versions})),)
        return Measured(name=name, rounds=rounds, import_seconds=(None,), start_seconds=(1.0,))

    ours = {"numpy": "2", "engine": "1"}
    made = [measured("a", ours), measured("b", {}), measured("c", ours)]
    found = SimpleNamespace(contestants=made)

    assert bench.versions(found) == "Versions: a, c: engine 1, numpy 2; b: not told."


def test_the_bundle_worker_prints_figures_alone(bundle, capsys):
    assert speed_worker.main(str(bundle), json.dumps(vars_of(WORK))) == 0
    figures = Figures(**json.loads(capsys.readouterr().out))

    assert figures.decode_tokens_per_second > 0
    assert figures.weight_bytes == speed_worker.weight_bytes(Manifest.read(bundle))


def test_without_a_depth_nothing_deep_is_timed(bundle):
    shallow = speed_worker.take_turn(str(bundle), vars_of(WORK) | {"depth_tokens": 0})

    assert shallow["deep_tokens_per_second"] is None


def test_the_bundle_worker_says_why_there_are_no_figures(tmp_path, capsys):
    assert speed_worker.main(str(tmp_path), json.dumps(vars_of(WORK))) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path}/manifest.json not found")


def test_a_table_for_lookups_alone_is_not_read_in_a_step(bundle):
    manifest = Manifest.read(bundle)

    def read(**sizes):
        tensors = tuple(
            QuantizedTensor(
                name=name.replace("_", " "),
                sources=(),
                shape=(4, 32),
                bits=8,
                block_size=32,
                symmetric=False,
                size_bytes=size_bytes,
                note="",
            )
            for name, size_bytes in sizes.items()
        )
        spec = dataclasses.replace(manifest.quantization, tensors=tensors)
        return speed_worker.weight_bytes(dataclasses.replace(manifest, quantization=spec))

    assert read(matrix=10, **{"e_(embedding)": 5, "h_(head)": 7}) == 17
    assert read(matrix=10, **{"e_(embedding)": 5, "e_(head)": 0}) == 15


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            "import sys; sys.exit('first\\nout of paper')",
            "x could not be run (exit code 1): out of paper",
        ),
        ("import os; os.kill(os.getpid(), 9)", "x could not be run (signal 9, Killed): no"),
        ("print('hello')", "x printed no figures (the last line, 'hello', is no JSON)"),
        ("print('{}')", "x printed no figures (the object lacks decode_tokens_per_second, deep_"),
        ("print('[]')", "x printed no figures (the last line is []; expected a JSON object)"),
        ("print('[' * 100_000)", "x printed no figures (the last line, '[[["),
        (
            "import os; os.write(1, b'\\xff\\n')",
            "x printed no figures (the last line, '\ufffd', is",
        ),
        ("pass", "x printed no figures (nothing was printed); see docs/benchmarks.md"),
    ],
)
def test_a_contestant_that_fails_is_named_with_the_reason(program, message):
    contestant = Contestant(name="x", command=(sys.executable, "-c", program))

    with pytest.raises(EvaluationError, match=f"^{re.escape(message)}"):
        run_once(contestant, WORK, 60)


def prints(text):
    return Contestant(name="x", command=(sys.executable, "-c", f"print({text!r})"))


def test_only_the_end_of_what_is_printed_is_kept(monkeypatch):
    monkeypatch.setattr(process, "TAIL_BYTES", 4)

    done = process.run([sys.executable, "-c", "print('many lines'); print('end')"], 60)

    assert done == process.Done(exit_code=0, output="end\n", errors="")


@pytest.mark.parametrize("name", ["imported_at", "ready_at"])
@pytest.mark.parametrize("at", [1.0, 1e12])
def test_what_came_outside_of_the_run_is_refused(name, at):
    message = f"x printed no figures ({name} is {at:.3f}; expected seconds since the epoch"

    with pytest.raises(EvaluationError, match=f"^{re.escape(message)}"):
        run_once(prints(json.dumps(FIGURES | {name: at})), WORK, 60)


def test_a_first_token_before_the_imports_is_refused():
    figures = Figures(**FIGURES | {"imported_at": 3.0, "ready_at": 2.0})

    with pytest.raises(EvaluationError, match=r"^ready_at is 2\.000; expected .* from 3\.000 to"):
        figures.require_within(1.0, 4.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"load_seconds": "1"}, "load_seconds is '1'; expected a number, above 0"),
        ({"load_seconds": None}, "load_seconds is None; expected a number, above 0"),
        ({"ready_at": math.nan}, "ready_at is nan; expected a number, above 0"),
        ({"first_token_seconds": math.inf}, "first_token_seconds is inf; expected a number"),
        ({"decode_tokens_per_second": 0}, "decode_tokens_per_second is 0; expected a number"),
        ({"deep_tokens_per_second": -1.0}, "deep_tokens_per_second is -1.0; expected a number"),
        ({"prefill_tokens_per_second": True}, "prefill_tokens_per_second is True; expected"),
        ({"prefill_tokens_per_second": 10**400}, f"prefill_tokens_per_second is 1{'0' * 39}; "),
        ({"verify_seconds": -1}, "verify_seconds is -1; expected a number, 0 or more"),
        ({"memory_bytes": 0}, "memory_bytes is 0; expected an integer, above 0"),
        ({"weight_bytes": 1.5}, "weight_bytes is 1.5; expected an integer, 0 or more"),
        ({"versions": None}, "versions is None; expected an object of names and versions"),
        ({"versions": {"a": 1}}, "versions is {'a': 1}; expected an object of names"),
        ({"versions": {"a": "1\n2"}}, r"versions is {'a': '1\n2'}; expected an object of names"),
    ],
)
def test_figures_check_themselves(change, message):
    with pytest.raises(EvaluationError, match=f"^{re.escape(message)}"):
        Figures(**(FIGURES | change))


@pytest.mark.parametrize("change", [{"weight_bytes": 0}, {"verify_seconds": 0}])
def test_figures_of_a_bundle_without_matrices_or_hashes_are_good(change):
    assert Figures(**(FIGURES | change))


# Leaves a child that holds its output, tells its process id, and sleeps or ends.
PARENT = """
import pathlib, subprocess, sys, time
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
pathlib.Path(sys.argv[1]).write_text(f"{{sleeper.pid}}\\n")
time.sleep({seconds})
"""


def has_ended(path):
    """Tell whether the process that a file names ends soon."""
    status = Path("/proc") / path.read_text().strip() / "stat"
    for _ in range(100):
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def parent(path, seconds):
    command = (sys.executable, "-c", PARENT.format(seconds=seconds), str(path))
    return Contestant(name="x", command=command)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")


@needs_proc
def test_a_contestant_that_hangs_is_ended_with_all_it_started(tmp_path):
    message = "x took more than 2 seconds and was ended; give it more by --timeout"

    with pytest.raises(EvaluationError, match=f"^{message}$"):
        run_once(parent(tmp_path / "pid", 100), WORK, 2)

    assert has_ended(tmp_path / "pid")


@needs_proc
def test_what_a_contestant_leaves_behind_is_not_waited_for(tmp_path):
    began = time.monotonic()
    with pytest.raises(EvaluationError, match="nothing was printed"):
        run_once(parent(tmp_path / "pid", 0), WORK, 60)

    assert time.monotonic() - began < 50
    assert has_ended(tmp_path / "pid")


@needs_proc
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_bench_that_is_ended_leaves_no_process(bundle, tmp_path, number, code):
    path, described = tmp_path / "pid", tmp_path / "peer.json"
    described.write_text(json.dumps({"name": "x", "command": parent(path, 100).command}))
    options = [str(bundle), "--peer", str(described), "--rounds", "1", "--depth", "0"]
    command = [sys.executable, "-m", "wiola_export", "bench", *options, "--quiet"]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as bench_:
        while not (path.exists() and path.read_text().endswith("\n")):
            assert bench_.poll() is None
            time.sleep(0.05)
        bench_.send_signal(number)
        assert bench_.communicate(timeout=60) == (b"", b"")

    assert bench_.returncode == code
    assert has_ended(path)


def test_a_program_that_is_not_there_is_named(tmp_path):
    program = str(tmp_path / "none")
    message = f"x could not be started: {program}: No such file or directory"

    with pytest.raises(EvaluationError, match=f"^{re.escape(message)}$"):
        run_once(Contestant(name="x", command=(program,)), WORK, 60)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "describes no engine"),
        ("[" * 100_000, "is no JSON"),
        ('{"name": "", "command": ["b"]}', "describes no engine: the name is ''; expected one"),
        ('{"name": "a\\nb", "command": ["b"]}', r"the name is 'a\\nb'; expected one line of"),
        ('{"name": "a", "command": [""]}', "the command of a cannot be run; expected a program"),
        ('{"name": "a", "command": ["b\\u0000"]}', "the command of a cannot be run"),
        ('{"name": "a", "command": ["b", "\\ud800"]}', "the command of a cannot be run"),
        ('{"name": "a", "command": []}', "describes no engine"),
        ('{"name": "a", "command": ["b", 1]}', "describes no engine"),
        ('{"name": "a", "command": ["b"], "cwd": "c"}', "describes no engine"),
    ],
)
def test_a_peer_that_is_no_description_is_refused(tmp_path, text, message):
    path = tmp_path / "peer.json"
    path.write_text(text)

    with pytest.raises(OptionError, match=message):
        read_peer(path)


def test_a_peer_file_that_is_absent_is_named(tmp_path):
    with pytest.raises(OptionError, match="cannot be read"):
        read_peer(tmp_path / "none.json")


def test_two_of_one_name_are_refused(bundle, peer):
    message = "two contestants are called other engine; rename a folder or a peer"

    with pytest.raises(OptionError, match=f"^{message}$"):
        contestants([bundle], [peer, peer])


def test_the_workload_fits_the_shortest_context(bundle):
    work = workload_for([bundle], depth_tokens=None, threads=None)

    assert (work.prompt_tokens, work.reply_tokens, work.prefill_tokens) == (24, 24, 48)
    assert work.depth_tokens + work.deep_reply_tokens < 96
    assert workload_for([bundle], depth_tokens=5, threads=2).depth_tokens == 5
    message = "--depth is 32; the shortest context, of 96 tokens, takes 31 before a reply of 64"
    with pytest.raises(OptionError, match=f"^{message}$"):
        workload_for([bundle], depth_tokens=32, threads=None)


def test_a_long_context_gets_the_usual_workload(tmp_path):
    long = TinyBundle(context_length=2048).write(tmp_path / "long")

    assert workload_for([long], depth_tokens=None, threads=None) == Workload()


@pytest.mark.parametrize("field", ["prompt_tokens", "threads"])
def test_a_workload_checks_itself(field):
    with pytest.raises(OptionError, match=f"^{field} is 0; expected an integer >= 1$"):
        Workload(**{field: 0})


def test_the_command_prints_a_table_or_json(bundle, peer):
    runner = CliRunner()
    arguments = ["bench", str(bundle), "--peer", str(peer), "--rounds", "1", "--threads", "1"]
    shown = runner.invoke(app, [*arguments, "--quiet"])
    told = runner.invoke(app, [*arguments, "--json", "--quiet"])

    assert shown.exit_code == told.exit_code == 0
    assert "| other engine | 200 (200–200) |" in shown.output
    assert "; other engine: engine 1.\n" in shown.output
    assert {one["name"] for one in json.loads(told.output)["contestants"]} == {
        "tiny",
        "other engine",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "--rounds is 0; expected an integer >= 1"),
        (["--threads", "0"], "--threads is 0; expected an integer from 1 to 1024"),
        (["--threads", "1025"], "--threads is 1025; expected an integer from 1 to 1024"),
        (["--depth", "-1"], "--depth is -1; expected an integer >= 0"),
        (["--timeout", "0"], "--timeout is 0; expected a number of seconds above 0"),
        (["--timeout", "nan"], "--timeout is nan; expected a number of seconds above 0"),
        (["--timeout", "inf"], "--timeout is inf; expected a number of seconds above 0"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(bundle, capsys, arguments, message):
    assert main(["bench", str(bundle), *arguments]) == 2
    assert capsys.readouterr().err == f"wiola-export: error: {message}\n"


def test_a_folder_that_is_no_bundle_is_refused_before_anything_runs(tmp_path, capsys):
    assert main(["bench", str(tmp_path)]) == 2
    assert "manifest.json not found" in capsys.readouterr().err


def test_the_choice_of_huge_pages_is_read(tmp_path):
    setting = tmp_path / "enabled"
    setting.write_text("always [madvise] never\n", encoding="ascii")

    assert huge_pages(setting) == "madvise"
    assert huge_pages(tmp_path / "none") is None


def test_memory_is_read_at_some_speed():
    assert 1e8 < read_bandwidth(2) < 1e13


def test_a_median_is_of_the_rounds_that_tell():
    rounds = tuple(Figures(**(FIGURES | {"verify_seconds": value})) for value in (None, 1.0, 3.0))
    times = {"import_seconds": (0.2, None, 0.4), "start_seconds": (1.0, 2.0, 3.0)}
    one = Measured(name="x", rounds=rounds, **times)

    assert one.median("verify_seconds") == 2.0


def vars_of(workload):
    return dataclasses.asdict(workload)


def test_what_was_measured_can_be_read_back(bundle, peer):
    found = run_bench(contestants([bundle], [peer]), WORK, 1, Recording(), timeout=60)

    again = bench.from_json(bench.to_json(found))

    assert again == found
    assert bench.to_table(again, ["load, s"]).head == ("", "load, s")


def test_the_tables_of_the_documents_are_those_of_their_figures():
    command = [sys.executable, str(ROOT / "tests/bench/write_tables.py"), "--check"]

    assert subprocess.run(command, check=False).returncode == 0
