"""Read the tokenizer of a checkpoint: its vocabulary and which tokens begin and end a text."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

from tokenizers import Tokenizer

from wiola_export.errors import CheckpointError
from wiola_export.generation_config import sampling_defaults
from wiola_export.source_file import check_content, read_json_object, read_range

TOKENIZER_FILE = "tokenizer.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """What the files beside the weights say about tokens.

    Attributes:
        path: The tokenizer.json that goes into the bundle as it is.
        vocabulary: Token id by content, added tokens included.
        bos_id: Token that starts a document, where the model has one.
        adds_bos: Whether tokenizer.json itself puts it in front of every text.
        declared_eos_ids: Union of what the files declare, ascending.
        pad_id: Token that fills batches, where the model has one.
        chat_template: Jinja source of the chat format, where the checkpoint has one.
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
    generation_defaults: Mapping[str, float]
    warnings: tuple[str, ...]

    def token_id(self, content: str) -> int | None:
        """Return the id of a token by its content, or None where the vocabulary lacks it."""
        return self.vocabulary.get(content)

    def eos_ids(self, turn_end: str | None) -> tuple[int, ...]:
        """List every token that ends a reply, ascending; `turn_end` counts where it exists."""
        end = self.token_id(turn_end) if turn_end else None
        return tuple(sorted({*self.declared_eos_ids, *([] if end is None else [end])}))


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
    settings = read_optional(folder / "tokenizer_config.json")
    special = read_optional(folder / "special_tokens_map.json")
    _check_vocabulary(path, vocabulary, config.get("vocab_size"))

    def ids_of(role: str) -> tuple[int, ...]:
        sources = {"config.json": config, "generation_config.json": generation_config}
        declared = [
            number
            for file, raw in sources.items()
            for number in _id_list(folder / file, f"{role}_token_id", raw, config)
        ]
        named = [_content(raw.get(f"{role}_token")) for raw in (settings, special)]
        return (*declared, *(vocabulary[name] for name in named if name in vocabulary))

    bos_ids, pad_ids = ids_of("bos"), ids_of("pad")
    bos_id = bos_ids[0] if bos_ids else None
    defaults, warnings = sampling_defaults(generation_config)
    return TokenizerFiles(
        path=path,
        vocabulary=vocabulary,
        bos_id=bos_id,
        adds_bos=bos_id is not None and tokenizer.encode("x").ids[:1] == [bos_id],
        declared_eos_ids=tuple(sorted(set(ids_of("eos")))),
        pad_id=pad_ids[0] if pad_ids else None,
        chat_template=_chat_template(folder, settings),
        generation_defaults=defaults,
        warnings=(*_disagreements("bos", bos_ids), *_disagreements("pad", pad_ids), *warnings),
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


def _id_list(
    path: Path, key: str, raw: Mapping[str, object], config: Mapping[str, object]
) -> list[int]:
    """Return the ids under a key that holds an id, a list of ids, or nothing (null or -1)."""
    value = raw.get(key)
    listed = value if isinstance(value, list) else [value]
    ids = [number for number in listed if number is not None and number != -1]
    vocab_size = config.get("vocab_size")
    for number in ids:
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise CheckpointError(f"{path}: {key} is {value!r}, expected token ids; correct it")
        if isinstance(vocab_size, int) and number >= vocab_size:
            raise CheckpointError(
                f"{path}: {key} is {value!r}, expected ids below vocab_size {vocab_size}; "
                f"correct it"
            )
    return ids


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


def _disagreements(role: str, ids: Iterable[int]) -> list[str]:
    distinct = list(dict.fromkeys(ids))
    if not distinct[1:]:
        return []
    return [f"the checkpoint names {distinct} as its {role} token; {distinct[0]} is used"]
