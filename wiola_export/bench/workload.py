"""What every contestant does, and what it reports: the two ends of a pipe."""

import dataclasses

from wiola_export.errors import OptionError


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
    """

    load_seconds: float
    verify_seconds: float | None
    first_token_seconds: float
    decode_tokens_per_second: float
    deep_tokens_per_second: float | None
    prefill_tokens_per_second: float
    ready_at: float
    memory_bytes: int | None
    weight_bytes: int | None
    versions: dict[str, str]
