"""Everything that a report says under its verdict, in order."""

from collections.abc import Iterator

from wiola_export.report.accuracy_sections import accuracy_sections
from wiola_export.report.bundle_sections import bundle_sections
from wiola_export.report.document import Section
from wiola_export.report.report import Report


def sections(report: Report) -> Iterator[Section]:
    """Yield accuracy where it was measured, then the bundle itself."""
    if report.accuracy is not None:
        yield from accuracy_sections(report.accuracy, report.subject.precision)
    yield from bundle_sections(report)
