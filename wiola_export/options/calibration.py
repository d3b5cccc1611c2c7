"""Which text an export looks at."""

import dataclasses
from pathlib import Path

from wiola_export.errors import OptionError

DATA_FREE = "none"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    """Which text the weights are rounded on.

    Attributes:
        source: A file or folder of texts, the name of a packaged corpus, or `none`; None takes
            all packaged corpora.
        windows: Most windows that are used.
        context: Tokens of a window.
        seed: Chooses the windows where there are more.
    """

    source: Path | str | None = None
    windows: int = 64
    context: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        for name, least in (("windows", 1), ("context", 2), ("seed", 0)):
            value = getattr(self, name)
            if value < least:
                raise OptionError(
                    f"--calibration-{name} is {value}; expected at least {least}, or "
                    f"--calibration {DATA_FREE}"
                )
