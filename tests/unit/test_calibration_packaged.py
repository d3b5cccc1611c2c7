"""The packaged calibration corpora are what their README says, and apart from the others."""

import hashlib
from pathlib import Path

import pytest

from wiola_calibration import PACKAGED, packaged_calibration, packaged_text

README = Path(__file__).parents[2] / "calibration" / "README.md"
RUN = 12  # paragraphs of a text


def paragraphs(path):
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line]


@pytest.mark.parametrize("name", sorted(PACKAGED))
def test_a_packaged_corpus_is_the_one_that_the_readme_describes(name):
    (file,) = packaged_calibration(name).files
    content = file.text.path.read_bytes()

    row = next(
        line for line in README.read_text().splitlines() if f"/{file.text.path.name}`" in line
    )
    texts = content.split(b"\n\n")
    assert row.startswith(f"| `{name}` |")
    assert hashlib.sha256(content).hexdigest() == file.text.sha256
    assert f"`{file.text.sha256}`" in row
    count = len(paragraphs(file.text.path))
    assert f"| {len(texts)} | {count} | {len(content)} |" in row
    assert {len(text.strip().split(b"\n")) for text in texts} == {RUN}


def test_no_paragraph_to_calibrate_on_is_measured_on():
    calibration = {
        paragraph
        for file in packaged_calibration().files
        for paragraph in paragraphs(file.text.path)
    }
    evaluation = {
        paragraph for name in PACKAGED for paragraph in paragraphs(packaged_text(name).path)
    }

    assert len(calibration) > 1800
    assert calibration & evaluation == set()


def test_all_corpora_are_those_that_can_be_had_singly():
    single = [packaged_calibration(name).files[0] for name in PACKAGED]

    assert packaged_calibration().files == tuple(single)
    assert packaged_calibration().skipped == ()
    assert [file.text.name for file in single] == list(PACKAGED)


@pytest.mark.parametrize("name", sorted(PACKAGED))
def test_the_pieces_of_a_corpus_are_the_corpus(name):
    (file,) = packaged_calibration(name).files
    pieces = list(file.pieces())

    assert all(piece.first for piece in pieces)
    joined = "\n\n".join(piece.content for piece in pieces) + "\n"
    assert joined == file.text.path.read_text(encoding="utf-8")
