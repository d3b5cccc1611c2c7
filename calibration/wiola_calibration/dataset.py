"""The calibration set: equal windows from many short texts, and a record of every token."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from wiola_calibration.corpus import Text
from wiola_calibration.errors import CorpusError
from wiola_calibration.overlap import Overlap, find_overlap
from wiola_calibration.record import CalibrationFileRecord, CalibrationRecord
from wiola_calibration.sampling import Sample, Sampling, sample_windows
from wiola_calibration.sources import CalibrationFile, CalibrationFiles
from wiola_calibration.tokenization import Tokenization

# Stock phrases are shared by texts of one author; measured accuracy bends well above this.
TOLERATED_SHARE = 0.05


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSet:
    """Windows (W, T) of token ids in the order of the texts, and their record."""

    windows: NDArray[np.int64]
    record: CalibrationRecord


def calibration_set(
    files: CalibrationFiles,
    tokenization: Tokenization,
    sampling: Sampling,
    evaluation: Sequence[Text] = (),
) -> CalibrationSet:
    """Join all texts, cut them into windows, and keep a uniform sample of those.

    Args:
        files: What to read.
        tokenization: Text to tokens; each text begins and ends with its special tokens.
        sampling: Size and number of windows. Fewer than asked for is a warning in the record.
        evaluation: Texts that accuracy is measured on, to look for in the windows.

    Raises:
        CorpusError: The texts do not fill one window, or a file cannot be read.
    """
    counts = [_Count() for _ in files.files]
    sample = sample_windows(
        (
            ids
            for file, count in zip(files.files, counts, strict=True)
            for ids in _tokens(file, tokenization, count)
        ),
        sampling,
    )
    if sample.found == 0:
        raise CorpusError(
            f"the calibration texts give {sample.remainder} tokens, fewer than one window of "
            f"{sampling.context}; give more text"
        )
    overlap = find_overlap(sample.windows, evaluation, tokenization) if evaluation else None
    return CalibrationSet(
        windows=sample.windows, record=_record(files, counts, sampling, sample, overlap)
    )


@dataclasses.dataclass(slots=True)
class _Count:
    texts: int = 0
    tokens: int = 0


def _tokens(
    file: CalibrationFile, tokenization: Tokenization, count: _Count
) -> Iterator[Sequence[int]]:
    """Yield the tokens of a file, each text between its special tokens, and count them."""
    ids: list[int] = []
    for piece in file.pieces():
        if piece.first:
            ids.extend(tokenization.after if count.texts else ())
            ids.extend(tokenization.before)
            count.texts += 1
        ids.extend(tokenization.content(piece.content))
        count.tokens += len(ids)
        yield ids
        ids = []
    count.tokens += len(tokenization.after)
    yield tokenization.after


def _record(
    files: CalibrationFiles,
    counts: Sequence[_Count],
    sampling: Sampling,
    sample: Sample,
    overlap: Overlap | None,
) -> CalibrationRecord:
    return CalibrationRecord(
        files=tuple(map(_file_record, files.files, counts)),
        skipped_files=files.skipped,
        context=sampling.context,
        max_windows=sampling.max_windows,
        seed=sampling.seed,
        texts=sum(count.texts for count in counts),
        tokens=sum(count.tokens for count in counts),
        windows=sample.found,
        used_windows=len(sample.windows),
        used_tokens=sample.windows.size,
        unsampled_tokens=(sample.found - len(sample.windows)) * sampling.context,
        remainder_tokens=sample.remainder,
        overlap=overlap,
        warnings=tuple(_warnings(sampling, sample, overlap)),
    )


def _file_record(file: CalibrationFile, count: _Count) -> CalibrationFileRecord:
    return CalibrationFileRecord(
        name=file.text.name,
        description=file.text.description,
        sha256=file.text.sha256,
        size_bytes=file.text.size_bytes,
        texts=count.texts,
        tokens=count.tokens,
    )


def _warnings(sampling: Sampling, sample: Sample, overlap: Overlap | None) -> Iterator[str]:
    if sample.found < sampling.max_windows:
        yield (
            f"the calibration texts fill {sample.found} windows of {sampling.context} tokens, "
            f"fewer than the {sampling.max_windows} asked for; give more text"
        )
    if overlap is not None and overlap.share > TOLERATED_SHARE:
        yield (
            f"{overlap.share:.1%} of the calibration tokens also stand in the texts that accuracy "
            "is measured on, which flatters it; use other texts for one of the two"
        )
