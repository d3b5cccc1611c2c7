"""Hosts in other languages: their programs, and a tiny bundle that carries a self-test."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.tiny_bundle import TinyBundle

EXAMPLES = Path(__file__).parents[2] / "examples"
PROMPT_IDS = (9, 40, 41, 77)
REPLY_TOKENS = 24
TOLERANCES = {"float32": 1e-4, "float16": 0.02}
PATIENCE = 120.0  # seconds; a program that takes so long has failed


def program(*names: str, needs: str) -> str:
    """Find a program by one of its names; skip who asks where it or its packages are absent."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"{names[0]} is not on the PATH")
    if not (EXAMPLES / needs / "node_modules").is_dir():
        pytest.skip(f"examples/{needs}/node_modules is absent; nox -s languages installs it")
    return found


def node(*arguments: object, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run Node.js in the folder of its example; `text` is its standard input."""
    done = subprocess.run(
        [program("node", needs="node"), *map(str, arguments)],
        input=text.encode(),
        cwd=EXAMPLES / "node",
        capture_output=True,
        check=False,
        timeout=PATIENCE,
    )
    # Decoded here: text mode would take a carriage return of a reply for the end of a line.
    output = done.stdout.decode(), done.stderr.decode()
    return subprocess.CompletedProcess(done.args, done.returncode, *output)


def write_tested(bundle: TinyBundle, folder: Path) -> Path:
    """Write a tiny bundle whose self-test is what its formulas say."""
    bundle.write(folder)
    reply: list[int] = []
    for _ in range(REPLY_TOKENS):
        reply.append(int(bundle.oracle([*PROMPT_IDS, *reply])[-1].argmax()))
    logits = bundle.oracle([*PROMPT_IDS, *reply])
    positions = (0, len(PROMPT_IDS) - 1, len(logits) - 1)
    golden = {
        "prompt_ids": PROMPT_IDS,
        "token_ids": reply,
        "tolerance": TOLERANCES[bundle.cache_dtype],
        "logits": [_golden_logits(position, logits[position]) for position in positions],
    }
    change_manifest(folder, self_test=golden)
    return folder


def change_manifest(folder: Path, **fields: object) -> None:
    """Replace fields of a bundle's manifest."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(manifest | fields), encoding="utf-8")


def read_golden(folder: Path) -> dict:
    """Return the self-test of a bundle."""
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["self_test"]


def _golden_logits(position, row) -> dict:
    highest = np.argsort(row)[::-1][:4]
    return {
        "position": position,
        "token_ids": highest.tolist(),
        "values": row[highest].tolist(),
    }
