"""The runtime imports the standard library and three packages, and prints nothing."""

import subprocess
import sys

IMPORT = """
import sys
before = set(sys.modules)
import wiola_runtime, wiola_runtime.cli
roots = {name.partition('.')[0] for name in set(sys.modules) - before}
print(' '.join(sorted(roots - sys.stdlib_module_names)))
"""


def test_an_import_pulls_in_only_the_allowed_packages():
    """ONNX Runtime itself waits for the first bundle."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True
    )

    assert set(done.stdout.split()) == {"numpy", "tokenizers", "wiola_runtime"}
    assert done.stderr == ""
