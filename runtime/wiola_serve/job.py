"""One prompt on its way through the server, and what it tells the request that waits for it."""

import dataclasses
import time
from collections.abc import Callable, Sequence

from wiola_runtime.batch import Member
from wiola_runtime.reply import Reply, Result, TokenLogprobs
from wiola_runtime.row import Row
from wiola_serve.refusal import Refusal


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What has become of an answer since the last news.

    Attributes:
        text: Whole characters.
        logprobs: Of the tokens since then, where they were asked for.
        result: In the last one.
        failure: In the last one instead, where the answer cannot be finished.
    """

    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()
    result: Result | None = None
    failure: Refusal | None = None


class Job:
    """A prompt with its reply; compared by identity.

    Args:
        client: Whose it is.
        reply: Checked, and not begun.
        listen: Is given the news, on the thread that decodes.
        streams: Whether each token is news, or the whole answer only.
        keeps: Whether its state may be of use afterwards.
    """

    def __init__(
        self,
        client: str,
        reply: Reply,
        listen: Callable[[News], object],
        *,
        streams: bool = False,
        keeps: bool = False,
    ) -> None:
        self.client = client
        self.reply = reply
        self.keeps = keeps
        self.member: Member | None = None
        self._listen = listen
        self._streams = streams
        self._told = 0
        self._arrived = self._last = time.perf_counter()

    def begin(self, row: Row) -> Member:
        """Make it a member of a batch whose row holds the beginning of the prompt."""
        self.reply.reused_tokens = row.length
        self.member = Member(self.reply, row, keeps=self.keeps)
        return self.member

    def lap(self) -> tuple[float, bool]:
        """Return the seconds since the last token, or since the arrival of the first."""
        now = time.perf_counter()
        seconds, is_first = now - self._last, self._last == self._arrived
        self._last = now
        return seconds, is_first

    def tell(self) -> None:
        """Tell what is new; nobody hears of characters that are not whole."""
        member = self.member
        assert member is not None, "it has begun"
        if self._streams and member.text:
            self._listen(News(text=self._text(member), logprobs=self._logprobs(self.reply.told)))

    def end(self, failure: Refusal | None = None) -> None:
        """Tell the end, good or bad."""
        if failure is not None:
            self._listen(News(failure=failure))
            return
        assert self.member is not None, "it has begun"
        result = self.member.result()
        told = self._logprobs(result.logprobs or ())
        self._listen(News(text=self._text(self.member), logprobs=told, result=result))

    def _text(self, member: Member) -> str:
        text, member.text = member.text, ""
        return text

    def _logprobs(self, told: Sequence[TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
        new = tuple(told[self._told :])
        self._told = len(told)
        return new
