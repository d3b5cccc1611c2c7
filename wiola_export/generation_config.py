"""Take from generation_config.json the numbers that our sampling knows."""

import math
from collections.abc import Mapping

_SAMPLING_ONLY = ("temperature", "top_k", "top_p", "min_p")
# What transformers writes or assumes where nobody chose: no contradiction with do_sample false.
_NEUTRAL = {"temperature": 1.0, "top_k": 50.0, "top_p": 1.0, "min_p": 0.0}
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, math.inf),
    "top_k": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, math.inf),
    "max_new_tokens": (0.0, math.inf),
}
_ABOVE_ZERO = ("top_p", "repetition_penalty")
_WHOLE = ("top_k", "max_new_tokens")


def sampling_defaults(raw: Mapping[str, object]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return usable numbers by name, and a warning for each one that was set and is not used.

    As in transformers, an absent `do_sample` means greedy decoding, where temperature and the
    filters say nothing; sampling without a temperature means temperature 1.
    """
    found: dict[str, float] = {}
    warnings = []
    for name in _RANGES:
        value = raw.get(name)
        if value is None:
            continue
        number = _number_in_range(name, value)
        if number is None:
            warnings.append(
                f"generation_config.json: {name} {value!r} is out of range; ignored"
            )
        else:
            found[name] = number
    if raw.get("do_sample") is True:
        found.setdefault("temperature", 1.0)
        return found, tuple(warnings)
    dropped = [
        name for name in _SAMPLING_ONLY if found.pop(name, None) not in {None, _NEUTRAL[name]}
    ]
    if dropped:
        warnings.append(
            f"generation_config.json sets {', '.join(dropped)} without do_sample; "
            f"decoding is greedy and they are ignored"
        )
    return found, tuple(warnings)


def _number_in_range(name: str, value: object) -> float | None:
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not math.isfinite(value)
    ):
        return None
    low, high = _RANGES[name]
    inside = low <= value <= high and (value > 0 or name not in _ABOVE_ZERO)
    whole = name not in _WHOLE or value == int(value)
    return value if inside and whole else None
