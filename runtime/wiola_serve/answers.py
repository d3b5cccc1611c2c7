"""The answers of the protocol: whole, or a piece at a time."""

import dataclasses
import json
import secrets
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from wiola_runtime import Result, Tokenizer, TokenLogprobs
from wiola_runtime.reply import FinishReason
from wiola_runtime.text import StreamDecoder
from wiola_serve.job import News

Json = dict[str, Any]
# All others are ends that the model, a stop string or a grammar has made.
CUT_SHORT: tuple[FinishReason, ...] = ("length", "context")
LAST_LINE = b"data: [DONE]\n\n"


def as_json(content: Mapping[str, Any]) -> bytes:
    """Write JSON in ASCII, which no half of a character can break."""
    return json.dumps(content, separators=(",", ":")).encode()


def event(content: Mapping[str, Any]) -> bytes:
    """Write one event of a stream."""
    return b"data: " + as_json(content) + b"\n\n"


def finish_of(result: Result | None) -> str | None:
    """Return the protocol's word for what ended an answer."""
    if result is None:
        return None
    return "length" if result.finish_reason in CUT_SHORT else "stop"


def usage(results: Sequence[Result]) -> Json:
    """Count the tokens of some answers."""
    prompt = sum(result.prompt_tokens for result in results)
    made = sum(len(result.token_ids) for result in results)
    reused = sum(result.reused_tokens for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": reused},
    }


class TokenTexts(dict[int, str]):
    """What single tokens look like inside a text; each is found once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str:
        """Find a token as it is inside a text; an end token as it is written."""
        decode = self.tokenizer.decode
        text = decode([token_id, token_id])[len(decode([token_id])) :]
        self[token_id] = text or self.tokenizer.token_text(token_id)
        return self[token_id]


class CompletionForm:
    """Answers of `/v1/completions`."""

    prefix, whole, piece = "cmpl-", "text_completion", "text_completion"

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._places = defaultdict[int, _Place](lambda: _Place(texts))

    def choice(self, news: News) -> Json:
        """Return the fields of a whole choice."""
        told = None if news.result is None else news.result.logprobs
        place = _Place(self._texts)
        return {"text": news.text, "logprobs": self._logprobs(told, place)}

    def delta(self, news: News, index: int) -> Json:
        """Return the fields of a piece of a choice."""
        told = self._logprobs(news.logprobs or None, self._places[index])
        return {"text": news.text, "logprobs": told}

    def _logprobs(self, told: Sequence[TokenLogprobs] | None, place: "_Place") -> Json | None:
        if told is None:
            return None
        texts = self._texts
        return {
            "tokens": [texts[one.token_id] for one in told],
            "token_logprobs": [one.logprob for one in told],
            "top_logprobs": [{texts[i]: p for i, p in reversed(one.top)} for one in told],
            "text_offset": [place.of(one.token_id) for one in told],
        }


class _Place:
    """How far a text has come: a character that is not whole is not counted yet."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._decoder = StreamDecoder(texts.tokenizer)
        self._length = 0

    def of(self, token_id: int) -> int:
        """Return where the next token begins in the text."""
        begins, piece = self._length, self._decoder.push(token_id)
        self._length += len(piece)
        own = self._texts[token_id]  # behind what was held back for it, if that never became whole
        return self._length - len(own) if piece.endswith(own) else begins


class ChatForm:
    """Answers of `/v1/chat/completions`."""

    prefix, whole, piece = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._has_begun = False

    def choice(self, news: News) -> Json:
        """Return the fields of a whole choice."""
        told = None if news.result is None else news.result.logprobs
        message = {"role": "assistant", "content": news.text, "refusal": None}
        return {"message": message, "logprobs": self._logprobs(told)}

    def delta(self, news: News, _index: int) -> Json:
        """Return the fields of a piece; the first one says who speaks."""
        said: Json = {} if self._has_begun else {"role": "assistant", "content": ""}
        self._has_begun = True
        if news.text:
            said["content"] = news.text
        return {"delta": said, "logprobs": self._logprobs(news.logprobs or None)}

    def _logprobs(self, told: Sequence[TokenLogprobs] | None) -> Json | None:
        if told is None:
            return None
        return {
            "content": [
                self._token(one.token_id, one.logprob)
                | {"top_logprobs": [self._token(i, p) for i, p in one.top]}
                for one in told
            ],
            "refusal": None,
        }

    def _token(self, token_id: int, logprob: float) -> Json:
        text = self._texts[token_id]
        whole = "\ufffd" not in text  # a token may end inside a character
        return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if whole else None}


@dataclasses.dataclass(frozen=True, slots=True)
class Envelope:
    """What stands around the choices of one answer."""

    form: CompletionForm | ChatForm
    model: str
    fingerprint: str
    number: str = dataclasses.field(default_factory=lambda: secrets.token_hex(12))
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    def whole(self, ends: Sequence[News]) -> Json:
        """Return the answer to all prompts, in their order."""
        choices = [
            {"index": i, **self.form.choice(news), "finish_reason": finish_of(news.result)}
            for i, news in enumerate(ends)
        ]
        results = [news.result for news in ends if news.result is not None]
        return self._around(self.form.whole) | {"choices": choices, "usage": usage(results)}

    def piece(self, index: int, news: News) -> Json:
        """Return a piece of one choice."""
        fields = {"index": index, **self.form.delta(news, index)}
        choice = fields | {"finish_reason": finish_of(news.result)}
        return self._around(self.form.piece) | {"choices": [choice]}

    def last(self, results: Sequence[Result]) -> Json:
        """Return the piece without a choice that counts the tokens."""
        return self._around(self.form.piece) | {"choices": [], "usage": usage(results)}

    def _around(self, kind: str) -> Json:
        return {
            "id": self.form.prefix + self.number,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }
