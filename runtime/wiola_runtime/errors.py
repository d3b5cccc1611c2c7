"""Everything the runtime raises on purpose.

WiolaRuntimeError
├── BundleError       the folder on disk is missing, damaged, foreign or too new
├── ChatError         the bundle has no chat format, or it refuses the conversation
├── CapacityError     the prompt plus the reply does not fit the exported context
├── DeviceError       the device or a sound ONNX Runtime is not there
├── GenerationError   an argument of a generation call is out of its range
├── SessionError      a conversation is in use elsewhere, or a saved one cannot be restored
└── SelfTestError     this machine does not reproduce the bundle's golden values
"""

import os
from pathlib import Path


class WiolaRuntimeError(Exception):
    """Base of every deliberate failure; catch this one at the edge."""


class BundleError(WiolaRuntimeError):
    """The bundle cannot be run as it lies on disk."""


class ChatError(WiolaRuntimeError):
    """Messages cannot be turned into this bundle's chat format."""


class CapacityError(WiolaRuntimeError):
    """More tokens were asked for than the exported context can hold."""


class DeviceError(WiolaRuntimeError):
    """The device or the ONNX Runtime build that was asked for is not available."""


class GenerationError(WiolaRuntimeError, ValueError):
    """A generation argument has a value outside its range; the message names the field."""


class SessionError(WiolaRuntimeError):
    """A conversation is in use elsewhere, or a saved one cannot be restored here."""


class SelfTestError(WiolaRuntimeError):
    """This machine computes something else than the machine that wrote the bundle."""


def path_of(given: object, name: str, expected: str, kind: type[WiolaRuntimeError]) -> Path:
    """Return an argument as a path; what is none raises an error of a kind."""
    if not isinstance(given, str | os.PathLike):
        raise kind(f"{name} is {given!r}; expected the path of {expected}")
    return Path(given)


def one_line(error: BaseException) -> str:
    """Return what another package says, in one line."""
    return " ".join(str(error).split())
