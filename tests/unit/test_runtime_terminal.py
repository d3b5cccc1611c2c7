"""A conversation in the terminal, line by line."""

import contextlib
import io
import json
import re
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from support.tiny_bundle import TinyBundle

from wiola_run import terminal
from wiola_run.cli import main
from wiola_runtime import load
from wiola_runtime.manifest import ChatSpec

CHAT = ChatSpec(template=None, roles={"user": "<pad>", "assistant": "<eos>"}, turn_end="<|end|>")
FEW = ["--max-new-tokens", "4"]


@pytest.fixture(scope="module", params=[None, CHAT], ids=["text", "chat"])
def folder(request, tmp_path_factory):
    return TinyBundle(chat=request.param).write(tmp_path_factory.mktemp("terminal") / "b")


def converse(folder, typed, monkeypatch, capsys, *options):
    """Type some lines; return exit code, what was answered and what was said beside."""
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in typed)))
    code = main([str(folder), *FEW, *options])
    out, err = capsys.readouterr()
    return code, out, err


def test_lines_are_answered_until_the_input_ends(folder, monkeypatch, capsys):
    code, out, err = converse(folder, ["It is", "", "a truth"], monkeypatch, capsys)

    with load(folder) as model:
        session = model.session()
        if model.manifest.chat is None:
            expected = [
                session.generate(line, max_new_tokens=4).text for line in ("It is", "a truth")
            ]
        else:
            asked = [{"role": "user", "content": "It is"}]
            first = session.chat(asked, max_new_tokens=4).text
            asked += [
                {"role": "assistant", "content": first.strip()},
                {"role": "user", "content": "a truth"},
            ]
            expected = [first, session.chat(asked, max_new_tokens=4).text]
    assert (code, out) == (0, "".join(f"{text}\n" for text in expected))
    assert err.startswith("tiny (")
    assert "/save FILE" in err


def test_commands_save_load_tell_and_quit(folder, monkeypatch, capsys, tmp_path):
    path = tmp_path / "chat.npz"
    typed = [
        *("/stats", "It is", f"/save {path}", "/reset", "/stats", f"/load {path}", "a"),
        *("/stats", "/save", "/load", "/nothing", "/help", "/quit", "never answered"),
    ]

    code, out, err = converse(folder, typed, monkeypatch, capsys)

    said = err.splitlines()
    assert code == 0
    assert out.count("\n") == 2
    assert said[1] == "0 tokens, 600 left"
    assert said[2].startswith("saved ")
    assert sum(line.startswith("loaded ") for line in said) == 1
    assert said[3] == "a new conversation"
    assert said[4] == "0 tokens, 600 left"
    assert any(line.startswith("last answer: 4 tokens, ") for line in said)
    assert [line for line in said if "file name" in line] == [
        "/save needs a file name",
        "/load needs a file name",
    ]
    assert any(line.startswith("unknown command /nothing; /save FILE") for line in said)


def test_a_failure_is_a_line_and_the_conversation_goes_on(folder, monkeypatch, capsys, tmp_path):
    code, out, err = converse(folder, [f"/load {tmp_path}/no.npz", "It is"], monkeypatch, capsys)

    assert code == 0
    assert "error: " in err
    assert "no.npz not found" in err
    assert out.endswith("\n")
    assert len(out) > 1


def test_ctrl_c_ends_the_answer_and_not_the_program():
    handler = signal.getsignal(signal.SIGINT)
    with terminal.interruptible() as cancel:
        signal.raise_signal(signal.SIGINT)
        assert cancel.is_cancelled

    assert signal.getsignal(signal.SIGINT) is handler
    assert threading.current_thread() is threading.main_thread()


def at_a_terminal(monkeypatch, *events):
    """Return what `lines` yields where a person types; an exception is a key with Ctrl."""
    happens = iter(events)

    def type_(_):
        event = next(happens)
        if isinstance(event, str):
            return event
        raise event

    monkeypatch.setattr("builtins.input", type_)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    return list(terminal.lines())


def test_ctrl_c_at_the_prompt_says_how_to_quit_and_a_second_one_quits(monkeypatch, capsys):
    typed = at_a_terminal(
        monkeypatch, KeyboardInterrupt, " hello ", KeyboardInterrupt, KeyboardInterrupt, "never"
    )

    assert typed == ["hello"]
    assert capsys.readouterr().err == 2 * f"{terminal.QUITTING}\n"


def test_ctrl_c_that_takes_a_line_away_never_quits(monkeypatch):
    editor = SimpleNamespace(get_line_buffer=lambda: "half a li")
    monkeypatch.setitem(sys.modules, "readline", editor)
    events = [KeyboardInterrupt, KeyboardInterrupt, "hello", EOFError]

    assert at_a_terminal(monkeypatch, *events) == ["hello"]


def test_ctrl_d_at_the_prompt_quits(monkeypatch, capsys):
    assert at_a_terminal(monkeypatch, "hello", EOFError, "never") == ["hello"]
    assert capsys.readouterr() == ("\n", "")


def test_ctrl_c_where_nobody_types_ends_the_program(monkeypatch, folder, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupted)
    monkeypatch.setattr("sys.stdin", io.StringIO())

    assert main([str(folder), *FEW]) == 130
    assert "error" not in capsys.readouterr().err


def test_an_interrupted_command_leaves_the_conversation(folder, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(terminal.Terminal, "_stats", interrupted)

    code, out, err = converse(folder, ["It is", "/stats", "a truth"], monkeypatch, capsys)

    assert (code, out.count("\n")) == (0, 2)
    assert f"interrupted; {terminal.QUITTING}\n" in err


def test_a_line_that_is_no_text_is_an_error_and_the_next_one_is_answered(folder, monkeypatch):
    """As with a console whose encoding is strict."""
    command = [sys.executable, "-m", "wiola_run", str(folder), *FEW]
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")

    done = subprocess.run(command, input=b"a\xff\nIt is\n", capture_output=True, check=True)

    assert done.stdout.count(b"\n") == 1
    said = done.stderr.decode().splitlines()
    assert said[1:] == ["error: the text is not valid Unicode; give UTF-8 text"]


def test_a_chat_begins_with_what_the_system_says(tmp_path, monkeypatch, capsys):
    roles = {"system": "<unk>", "user": "<pad>", "assistant": "<eos>"}
    spec = ChatSpec(template=None, roles=roles, turn_end="<|end|>")
    folder = TinyBundle(chat=spec).write(tmp_path / "b")
    path = tmp_path / "chat.json"
    typed = ["It is", "/reset", "a truth", f"/save {path}"]

    code, _, _ = converse(folder, typed, monkeypatch, capsys, "--system", "Be short.")

    assert code == 0
    asked = json.loads(path.read_text())[:2]
    assert asked == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "a truth"},
    ]


def test_a_bundle_without_such_messages_refuses_a_system(folder, monkeypatch, capsys):
    code, out, err = converse(folder, ["It is"], monkeypatch, capsys, "--system", "Be short.")

    assert (code, out) == (2, "")
    assert err.startswith("wiola-run: error: ")
    assert err.count("\n") == 1


def test_accepted_guesses_are_told(folder, monkeypatch, capsys):
    _, _, err = converse(folder, ["It is", "/stats"], monkeypatch, capsys, "--draft-tokens", "3")

    assert re.search(r", \d+ of \d+ guessed tokens right, ended by ", err)


def test_json_needs_something_to_print(folder, capsys):
    assert main([str(folder), "--json"]) == 2
    assert "--json needs --prompt or --self-test" in capsys.readouterr().err
    assert main([str(folder), "--json", "--self-test"]) == 2  # a tiny bundle has none
    with pytest.raises(json.JSONDecodeError):
        json.loads(capsys.readouterr().out)


def test_a_loaded_chat_goes_on_as_a_chat(tmp_path, monkeypatch, capsys):
    folder = TinyBundle(chat=CHAT).write(tmp_path / "b")
    path = tmp_path / "chat.json"
    converse(folder, ["It is", f"/save {path}"], monkeypatch, capsys)
    once = converse(folder, ["It is", "a truth"], monkeypatch, capsys)[1].splitlines()

    again = converse(folder, [f"/load {path}", "a truth"], monkeypatch, capsys)[1].splitlines()

    assert again == once[1:]
    assert [message["role"] for message in json.loads(path.read_text())] == ["user", "assistant"]


@pytest.mark.parametrize("content", ["", "[3]", "{}", "[" * 100_000])
def test_a_file_that_is_no_chat_is_refused(content, tmp_path, monkeypatch, capsys):
    folder = TinyBundle(chat=CHAT).write(tmp_path / "b")
    (tmp_path / "chat.json").write_text(content)

    typed = [f"/load {tmp_path}/chat.json", f"/save {tmp_path}", "It is"]
    code, out, err = converse(folder, typed, monkeypatch, capsys)

    assert code == 0
    assert err.count("error: ") == 2
    assert out.count("\n") == 1


@contextlib.contextmanager
def no_file_beyond(size):
    """Let the system refuse to write more, as a full disk does."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_save_that_fails_leaves_the_file_it_would_replace(folder, monkeypatch, capsys, tmp_path):
    path = tmp_path / "saved"
    path.write_bytes(b"what was there")

    with no_file_beyond(16):
        code, _, err = converse(folder, ["It is", f"/save {path}"], monkeypatch, capsys)

    assert code == 0
    assert f"error: {path} cannot be written (" in err
    assert path.read_bytes() == b"what was there"
    assert list(tmp_path.iterdir()) == [path]


def test_a_save_through_a_link_keeps_the_link(folder, monkeypatch, capsys, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link, path = tmp_path / "link", tmp_path / "elsewhere" / "saved"
    link.symlink_to(path)

    for _ in range(2):  # the second one replaces the first
        converse(folder, ["It is", f"/save {link}"], monkeypatch, capsys)
        assert (link.readlink(), path.is_file()) == (path, True)

    _, _, err = converse(folder, [f"/load {link}"], monkeypatch, capsys)
    assert "loaded " in err


def test_options_out_of_range_are_told_before_the_chat(folder, capsys):
    assert main([str(folder), "--temperature", "-1"]) == 2
    assert capsys.readouterr().err.startswith("wiola-run: error: temperature is -1.0; expected")


def test_a_chat_that_lacks_jinja2_says_so_and_never_continues_a_text(tmp_path, monkeypatch, capsys):
    template = ChatSpec(template="{{ messages[0].content }}", roles={}, turn_end=None)
    folder = TinyBundle(chat=template).write(tmp_path / "b")
    monkeypatch.setitem(sys.modules, "jinja2", None)

    code, out, err = converse(folder, ["It is"], monkeypatch, capsys)

    assert (code, out) == (0, "")
    assert err.startswith("tiny (a chat).")
    assert "error: this bundle's chat template needs jinja2; run: pip install" in err


def test_a_template_that_refuses_the_empty_message_is_a_chat_as_any_other(
    tmp_path, monkeypatch, capsys
):
    source = "{{ messages[0].content or raise_exception('say something') }}"
    folder = TinyBundle(chat=ChatSpec(template=source, roles={}, turn_end=None)).write(
        tmp_path / "b"
    )

    code, out, err = converse(folder, ["It is"], monkeypatch, capsys)

    assert (code, out.count("\n")) == (0, 1)
    assert err.startswith("tiny (a chat).")
    assert "error" not in err
