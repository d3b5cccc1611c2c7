"""A result as numbers first (JSON), then as prose that says nothing more (Markdown)."""

from wiola_export.report.markdown import to_markdown
from wiola_export.report.model_card import model_card
from wiola_export.report.report import Accuracy, Report, make_report, to_json

__all__ = ["Accuracy", "Report", "make_report", "model_card", "to_json", "to_markdown"]
