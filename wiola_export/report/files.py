"""Write a report into a folder."""

from pathlib import Path

from wiola_export.report.markdown import to_markdown
from wiola_export.report.report import Report, to_json

JSON_FILE, MARKDOWN_FILE = "report.json", "report.md"


def write_report(report: Report, folder: Path) -> None:
    """Write the report for machines and the one for people."""
    for name, text in ((JSON_FILE, to_json(report)), (MARKDOWN_FILE, to_markdown(report))):
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
