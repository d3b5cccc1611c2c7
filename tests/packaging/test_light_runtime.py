"""The runtime imports the standard library and three packages, and prints nothing."""

import subprocess
import sys

IMPORT = """
import sys
before = set(sys.modules)
import wiola_run.cli
roots = {name.partition('.')[0] for name in set(sys.modules) - before}
print(' '.join(sorted(roots - sys.stdlib_module_names)))
"""


def test_the_import_waits_with_what_few_need():
    """Each of these takes a tenth of its time or more."""
    code = "import sys, wiola_runtime; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    late = {"asyncio", "email", "jinja2", "llguidance", "onnxruntime", "socket", "ssl"}
    assert late & set(done.stdout.split()) == set()


def test_an_import_pulls_in_only_the_allowed_packages():
    """ONNX Runtime itself waits for the first bundle."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True
    )

    assert set(done.stdout.split()) == {"numpy", "tokenizers", "wiola_run", "wiola_runtime"}
    assert done.stderr == ""


def test_a_server_that_is_not_installed_is_an_instruction():
    """Here the extra is absent, or made so."""
    code = (
        "import sys; sys.modules['uvicorn'] = None; from wiola_serve.cli import main; main(['b'])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)

    assert done.stdout == ""
    assert done.stderr.endswith("is not installed; run: pip install 'wiola-runtime[server]'\n")
    assert done.stderr.count("\n") == 1
