"""Where calibration windows come from, and what became of every token."""

import dataclasses

from wiola_calibration.overlap import Overlap


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFileRecord:
    """What one file gave.

    Attributes:
        size_bytes: Of the whole file.
        texts: Texts in it.
        tokens: Tokens of those texts, with the tokens that begin and end a text.
    """

    name: str
    description: str
    sha256: str
    size_bytes: int
    texts: int
    tokens: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRecord:
    """Where the windows come from, and what became of every token.

    `tokens` = `used_tokens` + `unsampled_tokens` + `remainder_tokens`.

    Attributes:
        skipped_files: Names in the user's folder that are no calibration files.
        context: Tokens of a window.
        max_windows: Windows asked for.
        seed: Chose the windows.
        texts: Texts of all files.
        tokens: Tokens of all files.
        windows: Windows that the texts fill.
        used_windows: Windows of the set.
        used_tokens: Tokens in those.
        unsampled_tokens: Tokens in windows over the limit.
        remainder_tokens: Tokens at the end that fill no window.
        overlap: What the set shares with the texts to measure on; None where none were given.
        warnings: Sentences for the user, perhaps none.
    """

    files: tuple[CalibrationFileRecord, ...]
    skipped_files: tuple[str, ...]
    context: int
    max_windows: int
    seed: int
    texts: int
    tokens: int
    windows: int
    used_windows: int
    used_tokens: int
    unsampled_tokens: int
    remainder_tokens: int
    overlap: Overlap | None
    warnings: tuple[str, ...]

    def __post_init__(self) -> None:
        dropped = self.unsampled_tokens + self.remainder_tokens
        assert self.tokens == self.used_tokens + dropped
        assert self.tokens == sum(file.tokens for file in self.files)
