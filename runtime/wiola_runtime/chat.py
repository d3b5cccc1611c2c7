"""From messages to token ids: a template of the bundle, or the documented format of its family.

What a person wrote never becomes a control token, whatever it spells out: control tokens come from
the template alone, and a template with which that cannot be had is refused.
"""

import bisect
import functools
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from wiola_runtime.cancel import Cancellation
from wiola_runtime.errors import ChatError, one_line
from wiola_runtime.manifest import ChatSpec, TokenSpec
from wiola_runtime.text import Tokenizer

Message = Mapping[str, str]
Messages = Sequence[Message]
ROLES = ("system", "user", "assistant")
# Marks the special tokens that a message spells out, until they are plain text again. It is of a
# range of Unicode that has no meaning of its own.
MARK = "\uf8f0"
# A block that marks answers for training is for reading one that is always there.
GENERATION = {
    r"(\{%[-+]?\s*)generation\b": r"\1if true",
    r"(\{%[-+]?\s*)endgeneration\b": r"\1endif",
}
# What code in a template may raise.
MISBEHAVIOUR = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RuntimeError),
    *(SyntaxError, TypeError, ValueError),
)


class Chat:
    """The chat format of one bundle.

    Raises:
        ChatError: The format is incomplete, or its template is none or needs jinja2.
    """

    def __init__(self, spec: ChatSpec, tokens: TokenSpec, tokenizer: Tokenizer) -> None:
        if spec.template is None and (not spec.turn_end or "assistant" not in spec.roles):
            raise ChatError("the bundle's chat format has no end of a turn or no assistant")
        self._spec = spec
        self._tokens = tokens
        self._tokenizer = tokenizer
        self._control_ids = frozenset(tokenizer.added_tokens.values())
        control = sorted(tokenizer.added_tokens, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, control)) or r"(?!)")
        self._template = None if spec.template is None else compiled(spec.template)

    def ids(self, messages: Messages, *, replies: bool = True) -> list[int]:
        """Return the token ids of a conversation.

        Args:
            messages: Each with `role` and `content`.
            replies: Whether the assistant's turn begins at the end.

        Raises:
            ChatError: A message is none, or the template refuses the conversation.
        """
        given: object = messages
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise ChatError(f"messages are {type(given).__name__}; expected a list of them")
        checked = [_checked(message) for message in messages]
        if not checked:
            raise ChatError("there are no messages; expected at least one with role and content")
        text = self._rendered([self._marked(message) for message in checked], replies=replies)
        blank = [m | {"content": re.sub(r"\S", "x", m["content"])} for m in checked]
        expected = self._control.findall(self._rendered(blank, replies=replies))
        if self._control.findall(text) != expected:
            raise ChatError(
                "with this chat template a message would become a control token; take out what "
                "looks like one, or continue texts with generate instead"
            )
        ids = self._encoded(text)
        if self._tokens.adds_bos and ids[:1] != [self._tokens.bos_id]:
            ids.insert(0, cast("int", self._tokens.bos_id))
        return ids

    def fitting_ids(self, messages: Messages, most: int, cancel: Cancellation) -> list[int]:
        """Return the ids of a conversation, of `most` at most, without its oldest messages.

        The system's messages and the last one stay, which may still be too long; what is left of
        the others begins with a user's message. As few are left out as can be, or, once `cancel` is
        turned, all of them.
        """
        ids = self.ids(messages)
        others = [i for i, message in enumerate(messages[:-1]) if message["role"] != "system"]
        left = [messages[i]["role"] for i in others] + ["user"]
        # How many of the others may be left out.
        cuts = [n for n, role in enumerate(left) if n and role == "user"]

        @functools.cache
        def without(cut: int) -> list[int]:
            gone = set(others[:cut])
            return self.ids([m for i, m in enumerate(messages) if i not in gone])

        def fits(cut: int) -> bool:
            return not cancel.is_cancelled and len(without(cut)) <= most

        if len(ids) <= most or not cuts:
            return ids
        return without(cuts[bisect.bisect_left(cuts, True, hi=len(cuts) - 1, key=fits)])

    def _marked(self, message: dict[str, str]) -> dict[str, str]:
        """Break the control tokens that a content spells out."""
        content = message["content"].replace(MARK, "")
        broken = self._control.sub(lambda found: found[0][0] + MARK + found[0][1:], content)
        return message | {"content": broken}

    def _rendered(self, messages: Sequence[dict[str, str]], *, replies: bool) -> str:
        if self._template is None:
            return documented(self._spec, messages, replies=replies)
        return rendered(
            self._template,
            messages=messages,
            add_generation_prompt=replies,
            tools=None,
            documents=None,
            pad_token=self._tokenizer.token_text(self._tokens.pad_id),
            bos_token=self._tokenizer.token_text(self._tokens.bos_id),
            eos_token=self._tokenizer.token_text(next(iter(self._tokens.eos_ids), None)),
        )

    def _encoded(self, text: str) -> list[int]:
        """Encode control tokens as themselves, and everything between them as plain text."""
        control = [self._tokenizer.added_tokens[found] for found in self._control.findall(text)]
        if MARK not in text:
            # As everywhere, with the spaces that a token takes with it; unless a normalizer makes
            # control tokens of other characters.
            ids = self._tokenizer.encode(text, begins=False)
            if [i for i in ids if i in self._control_ids] == control:
                return ids
        ids, start = [], 0
        for found in self._control.finditer(text):
            ids += self._plain(text[start : found.start()], control)
            ids.append(self._tokenizer.added_tokens[found[0]])
            start = found.end()
        return ids + self._plain(text[start:], control)

    def _plain(self, text: str, control: Sequence[int]) -> list[int]:
        """Encode what is no control token; a tokenizer that makes one of its letters is refused."""
        ids = self._tokenizer.encode_plain(text.replace(MARK, ""))
        # What stands for unknown characters is none, unless the format uses it as one.
        harmless = {self._tokenizer.unknown_id} - set(control)
        if not self._control_ids.intersection(ids) <= harmless:
            raise ChatError(
                "with this tokenizer a message would become a control token; take out what looks "
                "like one, or continue texts with generate instead"
            )
        return ids


def documented(spec: ChatSpec, messages: Messages, *, replies: bool) -> str:
    """Write messages as the family documents it: `ROLE content END`, one space between each.

    Raises:
        ChatError: The tokenizer has no token for a role.
    """
    turns = []
    for message in messages:
        role = message["role"]
        if role not in spec.roles:
            raise ChatError(
                f"this bundle's chat format has no role {role!r}; expected {', '.join(spec.roles)}"
            )
        turns.append(f"{spec.roles[role]} {message['content'].strip()} {spec.turn_end}")
    if replies:
        turns.append(spec.roles["assistant"])
    return " ".join(turns)


def compiled(source: str) -> Any:  # noqa: ANN401  jinja2 is not there for everyone
    """Compile a Jinja template in a sandbox.

    Raises:
        ChatError: jinja2 is not installed, or the template is none.
    """
    try:
        import jinja2  # noqa: PLC0415  an extra: its absence must become an instruction
        import jinja2.sandbox  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ChatError(
            "this bundle's chat template needs jinja2; run: pip install 'wiola-runtime[chat]'"
        ) from error
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": _refuse, "strftime_now": time.strftime}
    # As in transformers; jinja2's own is for HTML.
    environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
    for block, read in GENERATION.items():
        source = re.sub(block, read, source)
    try:
        return environment.from_string(source)
    except (jinja2.TemplateError, *MISBEHAVIOUR) as error:
        raise ChatError(f"the chat template is not valid ({one_line(error)})") from error


def rendered(template: Any, **values: object) -> str:  # noqa: ANN401
    """Render a template; it is not bounded in time, as the exporter has tried it.

    Raises:
        ChatError: It refuses the conversation, or uses what the sandbox does not have.
    """
    import jinja2  # noqa: PLC0415  it compiled the template

    try:
        return str(template.render(**values))
    except (jinja2.TemplateError, *MISBEHAVIOUR) as error:
        raise ChatError(
            f"the chat template refuses this conversation ({one_line(error)})"
        ) from error


def _refuse(message: str) -> None:
    raise ValueError(message)


def _checked(message: object) -> dict[str, str]:
    if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
        raise ChatError(f"message {message!r} has no role and content; expected both")
    role, content = message["role"], message["content"]
    if role not in ROLES or not isinstance(content, str):
        raise ChatError(
            f"message has role {role!r} and content of type {type(content).__name__}; expected "
            f"{', '.join(ROLES)} and text"
        )
    return {"role": role, "content": content}
