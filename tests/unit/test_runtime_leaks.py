"""What is closed is let go of: memory stays flat, and no file stays open.

Linux only: memory and files are read from /proc. Each check has a process of its own.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from support.holdings import MEASURE
from support.tiny_bundle import TinyBundle

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/statm").is_file(), reason="needs /proc to read memory and open files"
)
MIB = 1 << 20
PROBE = f"""{MEASURE}
import wiola_runtime as wr

IDS = list(range(5, 45))
"""
SESSIONS = """
with wr.load(sys.argv[1]) as model:
    def use():
        session = model.session()
        session.generate(IDS, max_new_tokens=30)
        fork = session.fork()
        fork.generate(IDS, max_new_tokens=3)
        session.rewind(20)
        session.generate(max_new_tokens=3)
        model.generate([IDS[:9], IDS[:4]], max_new_tokens=3)
    for _ in range(30):
        use()
    before = memory(), files()
    for _ in range(300):
        use()
    print(memory() - before[0], files() - before[1])
"""
LOADS = """
def use():
    with wr.load(sys.argv[1]) as model:
        model.session().generate(IDS, max_new_tokens=3)
for _ in range(10):
    use()
before = memory(), files()
for _ in range(30):
    use()
print(memory() - before[0], files() - before[1])
"""


def growth(folder, work):
    """Return the bytes and the open files that some work has added, after a warm-up."""
    found = subprocess.run(
        [sys.executable, "-c", PROBE + work, folder], check=True, capture_output=True, text=True
    )
    return map(int, found.stdout.split())


@pytest.mark.parametrize("cache", ["shared", "growing"])
def test_300_conversations_leave_nothing_behind(cache, tmp_path):
    """Each holds 77 kB of keys, values and sums: together they would be 46 MB."""
    folder = TinyBundle(cache=cache).write(tmp_path / "b")
    if cache == "growing":  # whose rows decode together at one length only
        work = SESSIONS.replace("[IDS[:9], IDS[:4]]", "[IDS[:9], IDS[3:12]]")
    else:
        work = SESSIONS

    memory, files = growth(folder, work)

    assert memory < 8 * MIB
    assert files == 0


def test_30_models_loaded_and_closed_leave_nothing_behind(tmp_path):
    memory, files = growth(TinyBundle().write(tmp_path / "b"), LOADS)

    assert memory < 12 * MIB
    assert files == 0
