"""The results of a study: numbers for machines, a table for reading, a picture for looking at.

The same input gives the same bytes, except under `speed` and in the last column of the table.
"""

import dataclasses
import json
from pathlib import Path

from wiola_export.report.document import Table
from wiola_export.report.figures import (
    code,
    fixed,
    percent,
    plain,
    scientific,
    significant,
    size,
    span,
)
from wiola_export.report.markdown import markdown_table
from wiola_export.report.pictures.bundle import Point, unbeaten
from wiola_export.report.pictures.canvas import standalone
from wiola_export.report.pictures.study import scatter
from wiola_export.study.task import Figures, Outcome, replace_file

SCHEMA_VERSION = 1
JSON_FILE, MARKDOWN_FILE, PICTURE_FILE = "study.json", "study.md", "frontier.svg"
HEAD = (
    *("cell", "best of its size", "size", "bits", "KL, nats", "95 % interval", "same token"),
    *("ratio of perplexities", "reply, tokens/s"),
)
MARK, UNKNOWN = "✓", "–"
EXPLANATION = (
    "Smallest first. A cell marked ✓ is on the frontier: no other is as small or smaller and as "
    "close to the float model or closer. Bits are those of one weight, scales included."
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What came of the cells of one checkpoint, sorted by name."""

    checkpoint_sha256: str
    outcomes: tuple[Outcome, ...] = ()

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """The cells without figures."""
        return tuple(outcome for outcome in self.outcomes if outcome.error is not None)

    @property
    def measured(self) -> list[tuple[Outcome, Figures]]:
        """The cells with figures, smallest first."""
        found = [(one, one.figures) for one in self.outcomes if one.figures is not None]
        return sorted(found, key=lambda pair: (pair[1].size_bytes, pair[1].kl_nats, pair[0].name))

    @property
    def points(self) -> list[Point]:
        """The cells with figures, as they are drawn."""
        return [
            Point(one.name, figures.size_bytes, figures.kl_nats, figures.kl_nats_interval)
            for one, figures in self.measured
        ]

    @property
    def frontier(self) -> frozenset[str]:
        """Names of the cells that no other beats."""
        return frozenset(point.name for point in unbeaten(self.points))


def write_results(results: Results, folder: Path) -> None:
    """Write all forms, each file all at once."""
    replace_file(folder / JSON_FILE, to_json(results))
    replace_file(folder / MARKDOWN_FILE, to_markdown(results))
    if results.points:
        replace_file(folder / PICTURE_FILE, standalone(scatter("study", results.points)))


def to_json(results: Results) -> str:
    """Write an entry for each cell; what was not measured is null."""
    frontier = results.frontier
    figures = {
        "schema_version": SCHEMA_VERSION,
        "checkpoint_sha256": results.checkpoint_sha256,
        "cells": [_entry(outcome, frontier) for outcome in results.outcomes],
    }
    return json.dumps(figures, indent=2, sort_keys=True, allow_nan=False) + "\n"


def to_markdown(results: Results) -> str:
    """Write the table, and below it why cells have no figures."""
    frontier = results.frontier
    rows = tuple(_row(one.name, figures, frontier) for one, figures in results.measured)
    parts = [f"# {len(results.outcomes)} ways to store one checkpoint"]
    if rows:
        parts += [EXPLANATION, markdown_table(Table(HEAD, rows))]
    if results.failures:
        failures = (f"- {code(one.name)}: {plain(str(one.error))}" for one in results.failures)
        parts += ["## Without figures", "\n".join(failures)]
    return "\n\n".join(parts) + "\n"


def _entry(outcome: Outcome, frontier: frozenset[str]) -> dict[str, object]:
    names = [field.name for field in dataclasses.fields(Figures)]
    found = outcome.figures
    return {
        "name": outcome.name,
        "options": dict(outcome.choices),
        "error": outcome.error,
        "frontier": outcome.name in frontier,
        **(dict.fromkeys(names) if found is None else dataclasses.asdict(found)),
    }


def _row(name: str, figures: Figures, frontier: frozenset[str]) -> tuple[str, ...]:
    bits = figures.bits_per_weight
    return (
        *(code(name), MARK if name in frontier else "", size(figures.size_bytes)),
        *(UNKNOWN if bits is None else fixed(2)(bits), scientific(figures.kl_nats)),
        *(span(figures.kl_nats_interval, scientific), percent(figures.top1_agreement)),
        *(fixed(4)(figures.ppl_ratio), significant(figures.speed.reply_tokens_per_second)),
    )
