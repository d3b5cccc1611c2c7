"""The smallest example streams what the runtime generates."""

import subprocess
import sys
from pathlib import Path

from support.tiny_bundle import TinyBundle

import wiola_runtime as wr

MINIMAL = Path(__file__).parents[2] / "examples/minimal.py"


def test_ten_lines_stream_a_reply(tmp_path):
    bundle = TinyBundle().write(tmp_path / "b")
    with wr.load(bundle) as model:
        expected = model.generate("It is a truth", max_new_tokens=64).text

    command = [sys.executable, "-X", "utf8", MINIMAL, bundle, "It is a truth"]
    done = subprocess.run(command, check=True, capture_output=True)

    assert done.stdout.decode().replace("\r\n", "\n") == expected + "\n"
    assert done.stderr == b""
    code = MINIMAL.read_text(encoding="utf-8").partition('"""\n')[2]
    assert len([line for line in code.splitlines() if line]) <= 10


def test_without_arguments_it_says_what_it_takes():
    done = subprocess.run([sys.executable, MINIMAL], check=False, capture_output=True)

    assert (done.returncode, done.stdout) == (1, b"")
    usage = b'Load a bundle and stream a reply: `python minimal.py BUNDLE "It is a truth"`.'
    assert done.stderr.splitlines() == [usage]
