"""Text to token ids and back, whole or piece by piece; alone in knowing tokenizers."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

import tokenizers

from wiola_runtime.errors import BundleError, GenerationError
from wiola_runtime.manifest import TokenSpec

REPLACEMENT = "\ufffd"
# A character has at most four bytes, so at most three of them wait for the rest.
PENDING_BYTES = 3
# Tokens that a window keeps, so that a decoder which drops the space of a text's first token
# does not take a later token for the first.
CONTEXT_TOKENS = 2
WINDOW_TOKENS = 16


class Tokenizer:
    """The bundle's tokenizer; text in, ids out, and back."""

    def __init__(self, native: tokenizers.Tokenizer, tokens: TokenSpec) -> None:
        self._native = native
        self._tokens = tokens
        added = native.get_added_tokens_decoder().items()
        self._added = {token.content: number for number, token in added}
        self._special = {token.content: number for number, token in added if token.special}

    @classmethod
    def read(cls, path: Path, tokens: TokenSpec) -> Self:
        """Load `tokenizer.json`.

        Raises:
            BundleError: The file is no tokenizer.
        """
        try:
            native = tokenizers.Tokenizer.from_buffer(path.read_bytes())
        except Exception as error:  # tokenizers raises no narrower class
            raise BundleError(f"{path} is no tokenizer ({error}); export again") from error
        native.no_padding()
        native.no_truncation()
        return cls(native, tokens)

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        """Return the token ids of a text; special tokens written out in it count as such.

        Args:
            text: Any Unicode.
            begins: Whether the tokenizer puts around it what belongs around a whole text.

        Raises:
            GenerationError: The text is no Unicode text: bytes that were no UTF-8 got in.
        """
        ids = _encoded(self._native, text, begins=begins)
        bos = self._tokens.bos_id
        # A text that spells out its own beginning gets no second one from the tokenizer.
        if self._tokens.adds_bos and ids[:2] == [bos, bos]:
            del ids[0]
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Return the token ids of a text in which added tokens are letters as any others.

        Raises:
            GenerationError: The text is no Unicode text.
        """
        return _encoded(self._plain[0], text, begins=False)

    @property
    def unknown_id(self) -> int | None:
        """The token of characters that the vocabulary does not have, if there is one."""
        return self._plain[1]

    @functools.cached_property
    def _plain(self) -> tuple[tokenizers.Tokenizer, int | None]:
        """The same tokenizer without added tokens, and the token of unknown characters."""
        content = json.loads(self.to_json()) | {"added_tokens": [], "post_processor": None}
        unknown: int | None = content["model"].get("unk_id")  # of a Unigram; others have its text
        if unknown is None:
            unknown = self._native.token_to_id(content["model"].get("unk_token") or "")
        return tokenizers.Tokenizer.from_str(json.dumps(content)), unknown

    def to_json(self) -> str:
        """Return the text of a `tokenizer.json`."""
        return str(self._native.to_str())

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """The tokens that stand for themselves wherever a text spells them, with their ids."""
        return MappingProxyType(self._added)

    def token_text(self, token_id: int | None) -> str:
        """Return what a token is written as, special or not; nothing for None."""
        return "" if token_id is None else str(self._native.id_to_token(token_id) or "")

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids; special tokens have none."""
        return str(self._native.decode(list(token_ids), skip_special_tokens=True))

    def special_id(self, text: str) -> int | None:
        """Return the id of a special token by its text."""
        return self._special.get(text)


def _encoded(native: tokenizers.Tokenizer, text: str, *, begins: bool) -> list[int]:
    try:
        return list(native.encode(text, add_special_tokens=begins).ids)
    except TypeError as error:
        raise GenerationError("the text is not valid Unicode; give UTF-8 text") from error


@dataclasses.dataclass(slots=True)
class StreamDecoder:
    """Token ids one by one in, whole characters out.

    The pieces and the flushed tail together are the decoding of all ids at once. A byte-level
    token may end inside a character; its text then ends in replacement characters, which are
    held back until the rest has come. Each step decodes only a window of the last tokens.
    """

    tokenizer: Tokenizer
    _window: list[int] = dataclasses.field(default_factory=list)
    _emitted: int = 0

    def push(self, token_id: int) -> str:
        """Return the text that this token completes."""
        self._window.append(token_id)
        text = self.tokenizer.decode(self._window)
        stable = _without_open_character(text)
        piece = stable[self._emitted :]
        self._emitted = max(self._emitted, len(stable))
        if len(self._window) >= WINDOW_TOKENS and stable == text:
            self._window = self._window[-CONTEXT_TOKENS:]
            self._emitted = len(self.tokenizer.decode(self._window))
        return piece

    def flush(self) -> str:
        """Return what is left; a character that never ended becomes a replacement character."""
        text = self.tokenizer.decode(self._window)
        tail, self._emitted = text[self._emitted :], len(text)
        return tail


class StopFilter:
    """Text pieces in, the same text out up to a stop string.

    A tail that may be the beginning of a stop string is held back. The stop string that is
    complete first wins, so the cut does not depend on where the pieces end.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """Return the text that can no longer become part of a stop string."""
        if self.stopped:
            return ""
        text = self._held + piece
        ends = [(text.find(s) + len(s), text.find(s)) for s in self._stops if s in text]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)[1]]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        """Return the tail that was held back for a stop string that did not come."""
        tail, self._held = self._held, ""
        return tail


def _without_open_character(text: str) -> str:
    stripped = text.rstrip(REPLACEMENT)
    return text[: max(len(stripped), len(text) - PENDING_BYTES)]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
