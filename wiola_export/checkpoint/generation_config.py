"""Take from generation_config.json the numbers that our sampling knows."""

import sys
from collections.abc import Mapping

_SAMPLING_ONLY = ("temperature", "top_k", "top_p", "min_p")
# What transformers writes or assumes where nobody chose: no contradiction with do_sample false.
_NEUTRAL = {"temperature": 1.0, "top_k": 50.0, "top_p": 1.0, "min_p": 0.0}
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, sys.float_info.max),
    "top_k": (0.0, sys.float_info.max),
    "top_p": (sys.float_info.min, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (sys.float_info.min, sys.float_info.max),
    "max_new_tokens": (0.0, sys.float_info.max),
}
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
            warnings.append(f"generation_config.json: {name} {value!r} is out of range; ignored")
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
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    low, high = _RANGES[name]
    fits = low <= value <= high and (name not in _WHOLE or value == int(value))
    return value if fits else None
