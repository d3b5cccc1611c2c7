"""Memory does not grow with the texts, whatever they look like."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SMALL_BYTES = 4 << 20
LARGE_BYTES = 64 << 20
LARGE_BYTES_OF_SHORT_TEXTS = 24 << 20
ALLOWED_GROWTH_BYTES = 8 << 20
WORDS = b"It is a truth universally acknowledged, that it takes memory"
SHAPES = {
    "lines.txt": (WORDS + b"\n", LARGE_BYTES),
    "indented.txt": (b"    " + WORDS + b"\n", LARGE_BYTES),
    "texts.txt": (WORDS + b"\n\n", LARGE_BYTES_OF_SHORT_TEXTS),
    "texts.jsonl": (b'{"text": "' + WORDS + b'"}\n', LARGE_BYTES_OF_SHORT_TEXTS),
}
SCRIPT = """
import resource, sys
from pathlib import Path
import wiola_calibration as wc

def peak_bytes(folder, name):
    path = Path(folder, name)
    words = wc.Tokenization(encode=lambda text: list(map(len, text.split())), bos_id=1, eos_id=2)
    sampling = wc.Sampling(context=64, max_windows=1024)
    text = wc.user_text(path)
    made = wc.calibration_set(wc.user_calibration(path), words, sampling, [text])
    assert made.record.used_windows == 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

small = peak_bytes(sys.argv[1] + "/small", sys.argv[2])
print(peak_bytes(sys.argv[1] + "/large", sys.argv[2]) - small)
"""


def grown(path, line, size):
    path.parent.mkdir()
    path.write_bytes(line * (size // len(line)))


@pytest.mark.parametrize("name", SHAPES)
def test_memory_does_not_grow_with_the_texts(tmp_path, name):
    line, large_bytes = SHAPES[name]
    grown(tmp_path / "small" / name, line, SMALL_BYTES)
    grown(tmp_path / "large" / name, line, large_bytes)

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path, name], check=True, capture_output=True, text=True
    )

    assert int(done.stdout) < ALLOWED_GROWTH_BYTES
