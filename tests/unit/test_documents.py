"""The documents: their examples run, and their links lead somewhere."""

import re
from pathlib import Path

import pytest
from support.tiny_bundle import TinyBundle

import wiola_runtime as wr

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("examples/*.md"),
    *ROOT.glob("examples/*/README.md"),
    *(ROOT / folder / "README.md" for folder in ("runtime", "calibration", "tests/oracles")),
    ROOT / "wiola_export/demo/README.md",
]
BUNDLE = "wiola-demo-int8"  # what the examples open


def examples(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def run_examples(document, layout, tmp_path, monkeypatch):
    layout.write(tmp_path / BUNDLE)
    monkeypatch.chdir(tmp_path)
    found = examples(document)
    for code in found:
        exec(compile(code, document, "exec"), {})
    return len(found)


@pytest.mark.parametrize("cache", ["shared", "growing"])
def test_the_host_of_the_bundle_format_writes_what_the_runtime_writes(
    cache, tmp_path, monkeypatch, capsys
):
    count = run_examples("docs/bundle-format.md", TinyBundle(cache=cache), tmp_path, monkeypatch)

    with wr.load(tmp_path / BUNDLE) as model:
        ids = [*model.tokenizer.encode("It is a truth")]
        ids += model.generate("It is a truth", max_new_tokens=32).token_ids
        assert capsys.readouterr().out == model.tokenizer.decode(ids) + "\n"
    assert count == 1


def test_the_app_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    assert run_examples("README.md", TinyBundle(), tmp_path, monkeypatch) == 1
    assert "Timings(" in capsys.readouterr().out


def test_the_examples_of_the_runtime_run(tmp_path, monkeypatch):
    TinyBundle().write(tmp_path / "wiola-120m-int8")
    assert run_examples("runtime/README.md", TinyBundle(), tmp_path, monkeypatch) == 2


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file(document):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]

    assert [link for link in local if not (document.parent / link).exists()] == []


def test_no_document_is_forgotten():
    assert {"README.md", "CONTRIBUTING.md", "architecture.md"} <= {d.name for d in DOCUMENTS}
