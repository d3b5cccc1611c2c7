"""From JSON to frozen dataclasses: no key too few or too many, every type checked."""

import dataclasses
import sys
import types
from collections.abc import Mapping
from typing import Literal, Union, cast, get_args, get_origin, get_type_hints

from wiola_runtime.errors import BundleError


def decode(kind: object, raw: object, where: str) -> object:
    """Rebuild a value of a type from JSON.

    Args:
        kind: A dataclass, or what its fields may be: a scalar, Literal, tuple[X, ...],
            Mapping[str, X], X | None.
        raw: What `json.loads` returned.
        where: Name of the place, for messages.

    Raises:
        BundleError: The value is of another type; the message names the first such place.
    """
    if dataclasses.is_dataclass(kind):
        return _decode_record(cast("type", kind), raw, where)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(kind), raw, where)
    if origin in (tuple, Mapping):
        return _decode_collection(kind, raw, where)
    if raw in get_args(kind) if origin is Literal else _is_scalar(kind, raw):
        return raw
    choices = " or ".join(map(repr, get_args(kind)))
    raise _mismatch(where, raw, choices or getattr(kind, "__name__", str(kind)))


def _decode_record(kind: type, raw: object, where: str) -> object:
    if not isinstance(raw, dict):
        raise _mismatch(where, raw, "an object")
    hints = get_type_hints(kind)
    missing, unknown = sorted(hints.keys() - raw.keys()), sorted(raw.keys() - hints.keys())
    if missing or unknown:
        raise BundleError(f"{where}: missing keys {missing}, unknown keys {unknown}; export again")
    return kind(**{key: decode(hint, raw[key], f"{where}:{key}") for key, hint in hints.items()})


def _decode_union(options: tuple[object, ...], raw: object, where: str) -> object:
    if raw is None and type(None) in options:
        return None
    options = tuple(option for option in options if option is not type(None))
    for option in options[:-1]:
        if _is_scalar(option, raw):
            return raw
    return decode(options[-1], raw, where)


def _decode_collection(kind: object, raw: object, where: str) -> object:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(raw, list):
        return tuple(decode(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(raw))
    if origin is Mapping and isinstance(raw, dict):
        return {k: decode(arguments[1], v, f"{where}.{k}") for k, v in raw.items()}
    raise _mismatch(where, raw, "a list" if origin is tuple else "an object")


def _is_scalar(kind: object, raw: object) -> bool:
    if isinstance(raw, bool):
        return kind is bool
    if kind is float:  # an integer may be more than any
        return isinstance(raw, float) or (isinstance(raw, int) and abs(raw) <= sys.float_info.max)
    return (kind is int and isinstance(raw, int)) or (kind is str and isinstance(raw, str))


def _mismatch(where: str, raw: object, expected: str) -> BundleError:
    return BundleError(f"{where}: found {raw!r:.80}, expected {expected}; export again")
