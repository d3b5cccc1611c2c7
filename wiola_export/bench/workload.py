"""What every contestant does, and what it reports: the two ends of a pipe."""

import dataclasses
import json
from collections.abc import Mapping

from wiola_export.errors import EvaluationError, OptionError

MAY_BE_UNKNOWN = (
    *("imported_at", "verify_seconds", "deep_tokens_per_second"),
    *("memory_bytes", "weight_bytes"),
)
LARGEST = 1e18  # of a figure; beyond any number of bytes or tokens
MAY_BE_ZERO = ("verify_seconds", "weight_bytes")  # nothing is hashed; no matrix is quantized


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What to time; every contestant gets it as JSON in its last argument.

    Attributes:
        prompt_tokens: Of the prompt whose first token and whose reply are timed.
        reply_tokens: Of that reply.
        prefill_tokens: Of the prompt whose reading is timed.
        depth_tokens: Of the text behind which decoding is timed once more; 0 leaves that out.
        deep_reply_tokens: Of the reply there.
        threads: Of one matrix product; None is the contestant's own choice.
    """

    prompt_tokens: int = 128
    reply_tokens: int = 128
    prefill_tokens: int = 512
    depth_tokens: int = 1024
    deep_reply_tokens: int = 64
    threads: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            minimum = 0 if field.name == "depth_tokens" else 1
            optional = field.name == "threads" and value is None
            if not optional and (not isinstance(value, int) or value < minimum):
                raise OptionError(f"{field.name} is {value}; expected an integer >= {minimum}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one process measured; None where a contestant cannot tell.

    Attributes:
        imported_at: Time since the epoch at which its packages were imported.
        load_seconds: Opening the model, its files in the system's cache and not verified.
        verify_seconds: Hashing its files, where that is done.
        first_token_seconds: From a prompt of `prompt_tokens` to the first token, warmed up.
        decode_tokens_per_second: Of the reply behind that prompt.
        deep_tokens_per_second: Of the reply behind `depth_tokens`.
        prefill_tokens_per_second: Of a prompt of `prefill_tokens`.
        ready_at: Time since the epoch at which the first token of all was there.
        memory_bytes: Largest resident memory so far, once prompt and reply were done.
        weight_bytes: Bytes of weights that one decoding step reads.
        versions: Of what computes.

    Raises:
        EvaluationError: A value is none of these.
    """

    imported_at: float | None
    load_seconds: float
    verify_seconds: float | None
    first_token_seconds: float
    decode_tokens_per_second: float
    deep_tokens_per_second: float | None
    prefill_tokens_per_second: float
    ready_at: float
    memory_bytes: int | None
    weight_bytes: int | None
    versions: Mapping[str, str]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self)[:-1]:
            self._check(field.name, getattr(self, field.name))
        if not _is_table_of_texts(self.versions):
            raise EvaluationError(
                f"versions is {self.versions!r:.40}; expected an object of names and versions"
            )

    def require_within(self, started: float, ended: float) -> None:
        """Require that imports and first token came in this order, while the process ran.

        Raises:
            EvaluationError: They did not.
        """
        before = started
        for name in ("imported_at", "ready_at"):
            at = getattr(self, name)
            if at is None:
                continue
            if not before <= at <= ended:
                raise EvaluationError(
                    f"{name} is {at:.3f}; expected seconds since the epoch from {before:.3f} to "
                    f"{ended:.3f}, of a process that ran from {started:.3f}"
                )
            before = at

    @staticmethod
    def _check(name: str, value: object) -> None:
        zero = name in MAY_BE_ZERO
        match value:
            case None if name in MAY_BE_UNKNOWN:
                return
            case float() if name.endswith("_bytes"):
                pass
            case int() | float() if 0 < value <= LARGEST or (zero and value == 0):
                if not isinstance(value, bool):
                    return
        kind = "an integer" if name.endswith("_bytes") else "a number"
        least = "0 or more" if zero else "above 0"
        raise EvaluationError(f"{name} is {value!r:.40}; expected {kind}, {least}")


def figures_in(output: str) -> Figures:
    """Read what a contestant printed: its last line.

    Raises:
        EvaluationError: It is no figures.
    """
    lines = output.strip().splitlines()
    if not lines:
        raise EvaluationError("nothing was printed")
    try:
        found = json.loads(lines[-1])
    except (ValueError, RecursionError) as error:
        raise EvaluationError(f"the last line, {lines[-1]!r:.60}, is no JSON") from error
    known = {field.name for field in dataclasses.fields(Figures)}
    if not isinstance(found, dict):
        raise EvaluationError(f"the last line is {found!r:.60}; expected a JSON object")
    for problem, names in (("lacks", known - found.keys()), ("has", found.keys() - known)):
        if names:
            expected = "" if problem == "lacks" else ", which nothing reads"
            raise EvaluationError(f"the object {problem} {', '.join(sorted(names))}{expected}")
    return Figures(**found)


def _is_table_of_texts(found: object) -> bool:
    return isinstance(found, dict) and all(
        isinstance(text, str) and text.isprintable() for pair in found.items() for text in pair
    )
