"""A conversation as data: what was said, and the file that keeps it. No Qt in here."""

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

Mode = Literal["chat", "text"]
Role = Literal["user", "assistant"]
FORMAT = "wiola desktop conversation"
FORMAT_VERSION = 1


class ConversationError(Exception):
    """A file cannot be written, or holds no conversation for this bundle."""


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """What one side said at once."""

    role: Role
    content: str

    def __post_init__(self) -> None:
        """Check what a file may have got wrong.

        Raises:
            ConversationError: The role is unknown, or the content no text.
        """
        if self.role not in get_args(Role) or not isinstance(self.content, str):
            raise ConversationError(
                f"a turn has role {self.role!r} and content of type {type(self.content).__name__};"
                f" expected {' or '.join(get_args(Role))} and text"
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """All turns of one conversation with one bundle.

    Attributes:
        bundle: Fingerprint of the bundle that it belongs to.
        name: What people call that bundle.
        mode: `chat` has messages; in `text` all turns together are one text, as they stand.
    """

    bundle: str
    name: str
    mode: Mode
    turns: tuple[Turn, ...] = ()

    def with_turn(self, role: Role, content: str) -> Self:
        """Return the conversation one turn later."""
        return dataclasses.replace(self, turns=(*self.turns, Turn(role, content)))

    def messages(self) -> list[dict[str, str]]:
        """Return the turns as the runtime takes them."""
        return [dataclasses.asdict(turn) for turn in self.turns]

    def save(self, path: Path) -> None:
        """Write a file, whole or not at all.

        Raises:
            ConversationError: It cannot be written.
        """
        header = {"format": FORMAT, "format_version": FORMAT_VERSION}
        content = header | dataclasses.asdict(self)
        partial = path.with_name(f".{path.name}.partial")
        try:
            try:
                partial.write_text(json.dumps(content, indent=2), encoding="utf-8")
                partial.replace(path)
            except OSError:
                with contextlib.suppress(OSError):  # the first one is told
                    partial.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise ConversationError(f"{path} cannot be written ({error}); save elsewhere") from (
                error
            )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that `save` wrote.

        Raises:
            ConversationError: It is absent, damaged, or something else.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConversationError(f"{path} cannot be read ({error.strerror})") from error
        except (ValueError, RecursionError) as error:
            raise ConversationError(f"{path} is no saved conversation, or damaged") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ConversationError(f"{path} is no saved conversation; choose a file saved here")
        if content.get("format_version") != FORMAT_VERSION:
            raise ConversationError(
                f"{path} has format {content.get('format_version')}; this program reads "
                f"{FORMAT_VERSION}"
            )
        try:
            return cls._decode(content)
        except (LookupError, TypeError, ConversationError) as error:
            raise ConversationError(f"{path} is damaged ({error})") from error

    @classmethod
    def _decode(cls, content: Mapping[str, Any]) -> Self:
        bundle, name, mode = content["bundle"], content["name"], content["mode"]
        if not isinstance(bundle, str) or not isinstance(name, str) or mode not in get_args(Mode):
            raise ConversationError("bundle, name or mode is not what it should be")
        turns = tuple(Turn(**turn) for turn in content["turns"])
        return cls(bundle=bundle, name=name, mode=mode, turns=turns)

    def require(self, bundle: str, name: str, *, chats: bool) -> None:
        """Check that it can go on with an opened bundle.

        Raises:
            ConversationError: It belongs to another bundle, or is a chat where there is none.
        """
        if self.bundle != bundle:
            raise ConversationError(
                f"this conversation belongs to the bundle {self.name} ({self.bundle[:12]}…), and "
                f"{name} ({bundle[:12]}…) is open; open that bundle first"
            )
        if self.mode == "chat" and not chats:
            raise ConversationError(
                f"this conversation is a chat, and {name} cannot chat on this machine"
            )
