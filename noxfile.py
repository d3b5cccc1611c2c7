"""Everything that is run on this project, each session in an environment of its own.

`nox -s demo` and `nox -s tests` are all that a newcomer needs; `nox -l` lists the rest.
"""

import shutil
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
CONSTRAINTS = ("-c", "constraints.txt")
PRODUCT = ("./runtime[cpu]", ".[trace]")
SHOWN = ("pyinstaller", "pyside6-essentials")  # what the examples need
TESTING = (
    "pytest",
    "pytest-xdist",
    "hypothesis",
    "safetensors",
    "distributed",
    "httpx",
    "openai",
    *SHOWN,
)
# Files of tests side by side, a process for each core; tests of one file share what they made.
SIDE_BY_SIDE = ("-n", "auto", "--dist", "loadfile", "--durations", "30")
EDITABLE = ("-e", "./runtime[cpu,grammar,server]", "-e", ".[trace]")
DEMO = "build/wiola-demo-int8"
EXPORT_DEMO = ("wiola-export", "--variant", "demo", "--int8", "--out", DEMO, "--force")


@nox.session
def demo(session: nox.Session) -> None:
    """Export the packaged demo checkpoint to INT8, show its report, generate a paragraph."""
    session.install(*CONSTRAINTS, *PRODUCT)
    session.run(*EXPORT_DEMO)
    session.run("python", "-c", f"print(open('{DEMO}/report.md', encoding='utf-8').read())")
    prompt = ("--prompt", "It is a truth universally acknowledged, that", "--seed", "7")
    sampling = ("--temperature", "0.7", "--top-p", "0.9", "--max-new-tokens", "120")
    session.run("wiola-run", DEMO, *prompt, *sampling)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the whole test suite, then the checks of the sources and of the light runtime."""
    session.install(*CONSTRAINTS, *EDITABLE, *TESTING)
    if not session.posargs:
        _install_javascript(session)
    arguments = session.posargs or SIDE_BY_SIDE
    session.run("python", "-m", "pytest", *arguments, env={"OMP_NUM_THREADS": "1"})
    if not session.posargs:
        session.run(*EXPORT_DEMO, "--no-report")
        session.notify("check")
        session.notify("light")


@nox.session
def check(session: nox.Session) -> None:
    """Check format, lint, types and the floors between the modules."""
    session.install(*CONSTRAINTS, *EDITABLE, "ruff", "mypy", "import-linter", "pytest", "nox")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")
    session.run("lint-imports")


@nox.session
def light(session: nox.Session) -> None:
    """Prove that the runtime's wheel runs a bundle where neither torch nor onnx is installed."""
    session.install(*CONSTRAINTS, "./runtime[cpu]", "pytest")
    session.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/packaging")
    if not Path(DEMO).is_dir():
        session.error(f"{DEMO} is not there; run `nox -s demo` first")
    session.run("wiola-run", DEMO, "--self-test")
    session.run("wiola-run", DEMO, "--prompt", "It is a truth", "--max-new-tokens", "16")


@nox.session
def examples(session: nox.Session) -> None:
    """Run the tests of the examples: the desktop chat without a display, a frozen program."""
    session.install(*CONSTRAINTS, *EDITABLE, *TESTING)
    session.run("python", "-m", "pytest", "tests/examples", *session.posargs)


@nox.session
def languages(session: nox.Session) -> None:
    """Run the examples for Node.js and the browser; `tests` does so where npm is installed."""
    session.install(*CONSTRAINTS, *EDITABLE, *TESTING)
    _install_javascript(session)
    files = ("tests/examples/test_node.py", "tests/examples/test_web.py")
    session.run("python", "-m", "pytest", *files, *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def coverage(session: nox.Session) -> None:
    """Run the test suite and report which lines and branches it reaches."""
    session.install(*CONSTRAINTS, *EDITABLE, *TESTING, "coverage[toml]")
    session.run("coverage", "run", "-m", "pytest", *session.posargs)
    session.run("coverage", "report")


@nox.session
def bench(session: nox.Session) -> None:
    """Time bundles of a size beside other engines (compiles llama.cpp: half an hour at first).

    `nox -s bench -- 360m llama.cpp` takes another size, and some of the engines.
    """
    session.install(*CONSTRAINTS, *EDITABLE)
    variant, *engines = session.posargs or ("120m",)
    folder = Path("build/bench")
    bundles = {p: f"{folder}/{variant}/wiola-{p}" for p in ("int4", "int8")}
    for precision, bundle in bundles.items():
        how = (f"--{precision}", "--calibration", "none", "--no-report", "--force")
        session.run("wiola-export", "--variant", variant, *how, "--out", bundle)
    prepare = ("python", "tests/bench/peers/prepare.py", variant, str(folder), *engines)
    peers = str(session.run(*prepare, silent=True, stderr=None)).splitlines()
    chosen = [argument for peer in peers for argument in ("--peer", peer)]
    with (folder / f"{variant}.json").open("w", encoding="utf-8") as file:
        session.run(
            "wiola-export", "bench", *bundles.values(), *chosen, "--json", stdout=file, stderr=None
        )
    session.log(f"copy {file.name} to docs/bench, then run tests/bench/write_tables.py")


@nox.session
def memory(session: nox.Session) -> None:
    """Export large random checkpoints and print time and peak memory (takes minutes)."""
    session.install(*CONSTRAINTS, *EDITABLE)
    session.run("python", "tests/bench/export_memory.py", *session.posargs)


@nox.session
def gpu(session: nox.Session) -> None:
    """Check the CUDA target on a machine that has a GPU: parity with the CPU, tokens a second."""
    session.install(*CONSTRAINTS, "./runtime[cuda,server]", ".[trace]", *TESTING)
    session.run("python", "-m", "pytest", "-m", "gpu", "-rs", "tests", *session.posargs)
    session.run("python", "tests/bench/cuda_check.py")


def _install_javascript(session: nox.Session) -> None:
    """Install what the lock files of the examples name; without npm their tests skip."""
    if shutil.which("npm") is None:
        session.log("npm is not on the PATH: the examples for Node.js and the browser are skipped")
        return
    for folder in ("examples/node", "examples/web"):
        with session.chdir(folder):
            session.run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", external=True)
