"""`wiola-run`: text on stdout, everything else on stderr, failures in one line."""

import dataclasses
import io
import json
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from support.tiny_bundle import TinyBundle

from wiola_run.cli import main
from wiola_run.interrupts import held
from wiola_runtime import Manifest, load
from wiola_runtime.manifest import SelfTest

PROMPT = ["--prompt", "It is", "--max-new-tokens", "6"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return TinyBundle().write(tmp_path_factory.mktemp("cli") / "b")


@pytest.fixture(scope="module")
def reply(folder):
    with load(folder) as model:
        return model.generate("It is", max_new_tokens=6)


def test_the_reply_goes_to_stdout_and_its_statistics_to_stderr(folder, reply, capsys):
    code = main([str(folder), *PROMPT])

    out, err = capsys.readouterr()
    assert (code, out) == (0, reply.text + "\n")
    assert err.startswith("[CPUExecutionProvider: load ")
    assert "reply 6 tokens" in err
    assert err.endswith("ended by length]\n")


def test_json_is_the_result(folder, reply, capsys):
    code = main([str(folder), *PROMPT, "--json"])

    out, err = capsys.readouterr()
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert result["text"] == reply.text
    assert tuple(result["token_ids"]) == reply.token_ids
    assert result["finish_reason"] == "length"
    assert result["timings"].keys() > {"prefill_seconds", "decode_seconds"}
    assert result["load_seconds"] > 0


def test_a_drawn_seed_is_shown_and_reproduces(folder, capsys):
    main([str(folder), *PROMPT, "--temperature", "1", "--top-k", "40"])
    first, err = capsys.readouterr()
    seed = err.rpartition("seed ")[2].strip("]\n")

    main([str(folder), *PROMPT, "--temperature", "1", "--top-k", "40", "--seed", seed])

    assert capsys.readouterr().out == first


def test_stop_can_be_given_twice(folder, reply, capsys):
    main([str(folder), *PROMPT, "--stop", "never there", "--stop", reply.text[2]])

    out, err = capsys.readouterr()
    assert out == reply.text.partition(reply.text[2])[0] + "\n"
    assert "ended by stop" in err


def test_where_stderr_is_closed_stdout_has_the_reply_alone(folder, reply, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr", None)

    assert main([str(folder), *PROMPT]) == 0
    assert main([str(folder / "none"), *PROMPT]) == 2
    assert capsys.readouterr().out == reply.text + "\n"


@pytest.mark.parametrize("options", [["--prompt", "-"], []])
def test_a_closed_stdin_is_one_line(folder, monkeypatch, capsys, options):
    monkeypatch.setattr("sys.stdin", None)

    assert main([str(folder), *options]) == 2
    message = "wiola-run: error: stdin is closed; give the text as --prompt TEXT\n"
    assert capsys.readouterr() == ("", message)


def test_a_prompt_that_is_no_text_is_one_line(folder, monkeypatch):
    command = [sys.executable, "-m", "wiola_run", str(folder), "--prompt", "-"]
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")

    done = subprocess.run(command, input=b"a\xff", capture_output=True, check=False)

    assert (done.returncode, done.stdout) == (2, b"")
    message = b"wiola-run: error: the text is not valid Unicode; give UTF-8 text\n"
    assert done.stderr == message


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_an_output_that_cannot_be_written_is_one_line(folder, stream):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "wiola_run", str(folder), *PROMPT]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, check=False, text=True, **(streams | {stream: full}))

    assert done.returncode == 2
    if stream == "stdout":
        message = "wiola-run: error: input or output failed ([Errno 28] No space left on device);"
        assert done.stderr == f"{message} see where stdin and stdout lead\n"


def test_an_output_without_a_file_fails_in_one_line_too(folder, monkeypatch, capsys):
    class Full(io.StringIO):
        def write(self, _):
            raise OSError("full")

    monkeypatch.setattr("sys.stdout", Full())

    assert main([str(folder), *PROMPT]) == 2
    assert capsys.readouterr().err.startswith("wiola-run: error: input or output failed (full)")


def test_accepted_guesses_are_in_the_statistics(folder, capsys):
    main([str(folder), *PROMPT, "--draft-tokens", "3"])

    assert re.search(r"; \d+ of \d+ guessed tokens right, ended by ", capsys.readouterr().err)


def test_a_dash_reads_the_prompt_from_stdin(folder, reply, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("It is"))

    main([str(folder), "--prompt", "-", "--max-new-tokens", "6"])

    assert capsys.readouterr().out == reply.text + "\n"


def test_random_weights_are_announced(tmp_path, capsys):
    folder = TinyBundle(weights="random").write(tmp_path / "b")

    assert main([str(folder), *PROMPT]) == 0

    assert "THE WEIGHTS OF THIS BUNDLE ARE RANDOM" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt", "x", "--temperature", "-1"], "temperature is -1.0; expected finite"),
        (["--prompt", "x", "--top-p", "0.5"], "top_p has no effect at temperature 0"),
        (["--prompt", "x", "--max-new-tokens", "-1"], "max_new_tokens is -1; expected"),
        (["--prompt", "x", "--threads", "0"], "threads is 0; expected 1 to 1024"),
        (["--prompt", "x", "--device", "cuda"], "device 'cuda' cannot be had"),
        (["--self-test"], "bundle tiny has no self-test"),
        (["--self-test", "--top-k", "3"], "--top-k has no effect with --self-test; leave it out"),
        (["--self-test", "--stop", "a"], "--stop has no effect with --self-test; leave it out"),
        (["--prompt", "x", "--system", "y"], "--system has no effect but in a chat; leave it out"),
    ],
)
def test_a_failure_is_one_line(folder, options, message, capsys):
    code = main([str(folder), *options])

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith(f"wiola-run: error: {message}")
    assert err.count("\n") == 1


def test_a_passed_self_test_says_how_close_it_came(tmp_path, capsys):
    bundle = TinyBundle()
    folder = bundle.write(tmp_path / "b")
    with load(folder) as model:
        token_ids = model.generate([7, 8], max_new_tokens=2, ignore_eos=True).token_ids
    golden = SelfTest(prompt_ids=(7, 8), token_ids=token_ids, logits=(), tolerance=1e-4)
    manifest = dataclasses.replace(Manifest.read(folder), self_test=golden)
    (folder / "manifest.json").write_text(manifest.to_json())

    assert main([str(folder), "--self-test"]) == 0
    assert capsys.readouterr().out == "self-test passed: logits differ by at most 0\n"
    assert main([str(folder), "--self-test", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["max_abs_difference"] == 0


def test_no_bundle_is_one_line(tmp_path, capsys):
    assert main([str(tmp_path), "--prompt", "x"]) == 2

    assert "manifest.json not found; is" in capsys.readouterr().err


def test_a_damaged_file_is_accepted_only_on_demand(tmp_path, capsys):
    folder = TinyBundle().write(tmp_path / "b")
    with (folder / "tokenizer.json").open("a") as file:
        file.write(" ")

    assert main([str(folder), *PROMPT]) == 2
    assert "tokenizer.json has" in capsys.readouterr().err
    assert main([str(folder), *PROMPT, "--no-verify"]) == 0


def test_a_reader_that_leaves_does_not_fail_here_either(folder, monkeypatch, tmp_path):
    """As below, in this process: what is still buffered goes nowhere."""

    def left(*_, **__):
        raise BrokenPipeError

    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr("wiola_run.opening.load", left)
        monkeypatch.setattr("sys.stdout", out)

        assert main([str(folder), *PROMPT]) == 0


def test_the_version_is_known_from_the_sources_alone(monkeypatch, capsys):
    def absent(_):
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(SystemExit):
        main(["--version"])

    assert capsys.readouterr().out == "wiola-run (run from its sources)\n"


def test_an_interrupt_is_quiet(folder, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("wiola_run.opening.load", interrupted)

    assert main([str(folder), *PROMPT]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_leaves_is_no_failure(folder):
    """As in `wiola-run BUNDLE --prompt TEXT | head -c 1`."""
    start = "import sys; from wiola_run.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", start, folder, "--prompt", "It is"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        errors = process.stderr.read()

    assert (process.wait(), errors) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--version"], 0, "wiola-run "),
        (["--help"], 0, "--repetition-penalty"),
        ([], 2, "usage:"),
    ],
)
def test_the_parser_answers(arguments, code, text, capsys):
    with pytest.raises(SystemExit) as leaving:
        main(arguments)

    out, err = capsys.readouterr()
    assert leaving.value.code == code
    assert text in out + err


def test_the_reply_keeps_to_a_schema_in_a_file(folder, tmp_path, capsys):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"enum": ["né", "it is"]}), encoding="utf-8")

    code = main([str(folder), "--prompt", "It", "--json-schema", str(path)])

    assert code == 0
    assert json.loads(capsys.readouterr().out) in ("né", "it is")


def test_the_reply_matches_an_expression(folder, capsys):
    code = main([str(folder), "--prompt", "It", "--regex", "(yes|no)!"])

    assert code == 0
    assert capsys.readouterr().out in ("yes!\n", "no!\n")


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_schema_that_cannot_be_read_is_one_line(folder, tmp_path, capsys, content):
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_bytes(content)

    code = main([str(folder), *PROMPT, "--json-schema", str(path)])

    err = capsys.readouterr().err
    assert code == 2
    assert err.startswith(f"wiola-run: error: --json-schema {path} cannot be read (")
    assert err.endswith("); expected a FILE with a schema\n")
    assert err.count("\n") == 1


def test_options_of_the_provider_are_key_and_value(folder, capsys):
    code = main([str(folder), *PROMPT, "--provider-option", "device_id=1"])

    message = "wiola-run: error: provider option device_id has no effect on the CPU; leave it out"
    assert code == 2
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize("option", ["device_id", "=1"])
def test_an_option_without_a_value_is_a_usage_error(folder, capsys, option):
    with pytest.raises(SystemExit, match=r"^2$"):
        main([str(folder), *PROMPT, "--provider-option", option])

    assert f"{option!r} is no KEY=VALUE" in capsys.readouterr().err


# A module that is written in C turns an interrupt into what it makes of any exception.
INTERRUPTED_IMPORT = """
import signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == {name!r}:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise ImportError("initialization failed")

sys.meta_path.insert(0, Interrupt())
sys.argv = {argv!r}
from wiola_run.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("name", ["numpy", "onnxruntime"])
def test_an_interruption_while_it_starts_shows_no_traceback(folder, name):
    code = INTERRUPTED_IMPORT.format(name=name, argv=["wiola-run", str(folder), *PROMPT])

    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)

    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_an_interrupt_that_is_ignored_stays_ignored():
    """As for a job in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_held_interrupt_is_raised_at_the_end():
    reached = False
    with pytest.raises(KeyboardInterrupt), held():
        signal.raise_signal(signal.SIGINT)
        reached = True

    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_command_runs_what_the_module_runs(folder, reply):
    code = f"import sys; sys.argv = {['wiola-run', str(folder), *PROMPT]!r}\n"
    code += "from wiola_run.__main__ import main; sys.exit(main())"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert done.stdout.decode() == reply.text + "\n"


def test_whatever_stands_for_stdout_gets_the_reply(folder, reply, monkeypatch):
    """A notebook's is no stream of bytes."""
    shown = io.StringIO()
    monkeypatch.setattr("sys.stdout", shown)

    assert main([str(folder), *PROMPT]) == 0
    assert shown.getvalue() == reply.text + "\n"
