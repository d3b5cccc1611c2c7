"""Whether Linux may give a process pages of 2 MiB instead of 4 KiB."""

from pathlib import Path

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def huge_pages(setting: Path = SETTING) -> str | None:
    """Return the system's choice, "always", "madvise" or "never"; None where there is none."""
    if not setting.is_file():
        return None
    _, _, chosen = setting.read_text(encoding="ascii").partition("[")
    return chosen.partition("]")[0] or None
