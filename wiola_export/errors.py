"""Everything the exporter raises on purpose.

ExportError
├── CheckpointError      the files on disk are not the model that their config describes
├── OptionError          a choice is out of range, without effect, or contradicts another
├── MissingExtraError    an optional dependency is not installed
├── LoweringError        a graph cannot be brought to the target's operators
├── QuantizationError    a weight cannot be stored as the scheme wants it
├── EvaluationError      a text cannot be measured
├── AccuracyError        the bundle is less accurate than was asked for (exit code 3)
└── OutputError          the output folder cannot be written
"""


class ExportError(Exception):
    """Base of every deliberate failure."""


class CheckpointError(ExportError):
    """The checkpoint on disk is not the model its config describes."""


class OptionError(ExportError):
    """A choice is out of range, without effect, or contradicts another one."""


class MissingExtraError(ExportError):
    """A command needs packages that this installation left out."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; run: pip install 'wiola-export[{extra}]'")


class LoweringError(ExportError):
    """A graph cannot be brought to the target's operators."""


class QuantizationError(ExportError):
    """A weight cannot be stored as the scheme wants it."""


class EvaluationError(ExportError):
    """A text cannot be measured."""


class AccuracyError(ExportError):
    """The bundle is less accurate than was asked for."""


class OutputError(ExportError):
    """The output folder cannot be written."""
