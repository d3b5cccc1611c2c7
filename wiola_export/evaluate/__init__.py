"""Measure a bundle with the runtime that ships: what it forgot, how fast it is."""

from wiola_export.evaluate.accuracy import (
    CONTEXT,
    WINDOWS_PER_TEXT,
    LogitsSource,
    compare,
    in_blocks,
)
from wiola_export.evaluate.drop import Divergence, Drop, summarize
from wiola_export.evaluate.machine import Machine, this_machine
from wiola_export.evaluate.speed import Speed, measure_speed

__all__ = [
    "CONTEXT",
    "WINDOWS_PER_TEXT",
    "Divergence",
    "Drop",
    "LogitsSource",
    "Machine",
    "Speed",
    "compare",
    "in_blocks",
    "measure_speed",
    "summarize",
    "this_machine",
]
