"""Write reports into a folder."""

from collections.abc import Mapping
from pathlib import Path

from wiola_export.report.markdown import to_markdown, to_markdown_all
from wiola_export.report.overview import to_json_all
from wiola_export.report.report import Report, to_json

JSON_FILE, MARKDOWN_FILE, HTML_FILE = "report.json", "report.md", "report.html"


def write_report(report: Report, folder: Path) -> None:
    """Write the report of one bundle: for machines, for reading, for looking at."""
    _write(folder, to_json(report), to_markdown(report), {report.subject.name: report})


def write_reports(reports: Mapping[str, Report], folder: Path) -> None:
    """Write the reports of several bundles by name, with an overview in front."""
    _write(folder, to_json_all(reports), to_markdown_all(reports), reports)


def _write(folder: Path, json: str, markdown: str, reports: Mapping[str, Report]) -> None:
    from wiola_export.report.page import to_html  # noqa: PLC0415  matplotlib is heavy

    files = ((JSON_FILE, json), (MARKDOWN_FILE, markdown), (HTML_FILE, to_html(reports)))
    for name, text in files:
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
