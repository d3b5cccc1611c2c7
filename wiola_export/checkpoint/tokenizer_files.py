"""Read the tokenizer of a checkpoint: its vocabulary and which tokens begin and end a text."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer

from wiola_export.checkpoint.chat_trial import chat_doubt
from wiola_export.checkpoint.generation_config import sampling_defaults
from wiola_export.checkpoint.source_file import check_content, read_json_object, read_range
from wiola_export.errors import CheckpointError
from wiola_runtime.manifest import TokenSpec

TOKENIZER_FILE = "tokenizer.json"
# What names special tokens, in the order in which it is believed.
NAMING = ("config", "generation_config", "tokenizer_config", "special_tokens_map")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """What the files beside the weights say about tokens.

    Attributes:
        path: The tokenizer.json that goes into the bundle as it is.
        vocabulary: Token id by content, added tokens included.
        bos_id: Token that starts a document, where the model has one.
        adds_bos: Whether tokenizer.json itself puts it in front of every text.
        declared_eos_ids: Union of what the files declare: the tokenizer's own, then the rest
            ascending.
        pad_id: Token that fills batches, where the model has one.
        chat_template: Jinja source of the chat format, where the checkpoint has one.
        chat_doubt: Why that template cannot be used, where it cannot.
        generation_defaults: Usable numbers of generation_config.json.
        warnings: What contradicts itself in these files and was decided here.
    """

    path: Path
    vocabulary: Mapping[str, int]
    bos_id: int | None
    adds_bos: bool
    declared_eos_ids: tuple[int, ...]
    pad_id: int | None
    chat_template: str | None
    chat_doubt: str | None
    generation_defaults: Mapping[str, float]
    warnings: tuple[str, ...]

    def token_id(self, content: str) -> int | None:
        """Return the id of a token by its content, or None where the vocabulary lacks it."""
        return self.vocabulary.get(content)

    def eos_ids(self, turn_end: str | None) -> tuple[int, ...]:
        """List every token that ends a reply; `turn_end` counts where it exists."""
        end = self.token_id(turn_end) if turn_end else None
        first, rest = self.declared_eos_ids[:1], self.declared_eos_ids[1:]
        return (*first, *sorted({*rest, *([] if end is None else [end])} - set(first)))


def read_tokenizer(
    folder: Path, config: Mapping[str, object], generation_config: Mapping[str, object]
) -> TokenizerFiles:
    """Load the tokenizer and check it against the configs.

    Raises:
        CheckpointError: tokenizer.json is absent or unreadable, another file is malformed, or a
            token id lies beyond the embedding.
    """
    path = folder / TOKENIZER_FILE
    tokenizer = _load(path)
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    _check_vocabulary(path, vocabulary, config.get("vocab_size"))
    settings, special = (read_optional(folder / f"{name}.json") for name in NAMING[2:])
    given = (config, generation_config, settings, special)
    files = {folder / f"{name}.json": raw for name, raw in zip(NAMING, given, strict=True)}
    size, roles = config.get("vocab_size"), ("bos", "eos", "pad")
    bos_ids, eos_ids, pad_ids = (_special_ids(files, role, vocabulary, size) for role in roles)
    bos_id = next(iter(bos_ids), None)
    tokens = TokenSpec(
        bos_id=bos_id,
        adds_bos=bos_id is not None and tokenizer.encode("x").ids[:1] == [bos_id],
        eos_ids=_own_first(eos_ids, vocabulary.get(_content(settings.get("eos_token")) or "")),
        pad_id=next(iter(pad_ids), None),
    )
    template = _chat_template(folder, settings)
    doubt = None if template is None else chat_doubt(template, path, tokens)
    defaults, warnings = sampling_defaults(generation_config)
    return TokenizerFiles(
        path=path,
        vocabulary=vocabulary,
        bos_id=tokens.bos_id,
        adds_bos=tokens.adds_bos,
        declared_eos_ids=tokens.eos_ids,
        pad_id=tokens.pad_id,
        chat_template=template,
        chat_doubt=doubt,
        generation_defaults=defaults,
        warnings=(*_doubts(bos_ids, eos_ids, pad_ids, doubt), *warnings),
    )


def read_optional(path: Path) -> dict[str, object]:
    """Load a JSON object that a checkpoint may do without; absent means empty.

    Raises:
        CheckpointError: The file is there and is no JSON object.
    """
    return read_json_object(path) if path.exists() else {}


def _load(path: Path) -> Tokenizer:
    size_bytes = check_content(path)
    try:
        return Tokenizer.from_buffer(read_range(path, 0, size_bytes))
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{path} is not a tokenizer that the tokenizers package reads ({reason}); "
            f"save it again with a fast tokenizer, or upgrade tokenizers"
        ) from error


def _check_vocabulary(path: Path, vocabulary: Mapping[str, int], vocab_size: object) -> None:
    highest = max(vocabulary.values(), default=-1)
    if highest < 0:
        raise CheckpointError(f"{path} has an empty vocabulary; save the tokenizer again")
    if isinstance(vocab_size, int) and highest >= vocab_size:
        raise CheckpointError(
            f"{path} has token ids up to {highest}, config.json an embedding of vocab_size "
            f"{vocab_size}; use the tokenizer that the model was trained with"
        )


def _special_ids(
    files: Mapping[Path, Mapping[str, object]],
    role: str,
    vocabulary: Mapping[str, int],
    vocab_size: object,
) -> list[int]:
    """Return each id that the files give a role, by number or by content, in their order."""
    ids: list[int] = []
    for path, raw in files.items():
        ids += _numbers(path, f"{role}_token_id", raw.get(f"{role}_token_id"), vocab_size)
        content = _content(raw.get(f"{role}_token"))
        if content is not None and content in vocabulary:
            ids.append(vocabulary[content])
    return list(dict.fromkeys(ids))


def _numbers(path: Path, key: str, value: object, vocab_size: object) -> list[int]:
    """Return the ids in a value that is an id, a list of ids, or nothing (null or -1)."""
    ids = []
    for number in value if isinstance(value, list) else [value]:
        if number is None or number == -1:
            continue
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise CheckpointError(f"{path}: {key} is {value!r}, expected token ids; correct it")
        if isinstance(vocab_size, int) and number >= vocab_size:
            raise CheckpointError(
                f"{path}: {key} is {value!r}, expected ids below vocab_size {vocab_size}; "
                f"correct it"
            )
        ids.append(number)
    return ids


def _own_first(ids: list[int], own: int | None) -> tuple[int, ...]:
    return tuple(sorted(ids, key=lambda number: (number != own, number)))


def _content(token: object) -> str | None:
    """Return the text of a special token, which files spell as a string or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _chat_template(folder: Path, settings: Mapping[str, object]) -> str | None:
    """Return the template; its own file wins over tokenizer_config.json, as in transformers."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return _decode(path, read_range(path, 0, check_content(path)))
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {e.get("name"): e.get("template") for e in template if isinstance(e, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _decode(path: Path, text: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 ({error.reason}); save it again") from error


def _doubts(
    bos_ids: list[int], eos_ids: list[int], pad_ids: list[int], chat: str | None
) -> list[str]:
    """Say where files name several tokens of one role or none to stop at, and what chat lacks."""
    doubts = [
        f"the checkpoint names {ids} as its {role} token; {ids[0]} is used"
        for role, ids in (("bos", bos_ids), ("pad", pad_ids))
        if ids[1:]
    ]
    if not eos_ids:
        doubts.append("the checkpoint names no eos token; replies end at their length limit")
    if chat is not None:
        doubts.append(f"the chat template is left out, so the bundle continues texts only: {chat}")
    return doubts
