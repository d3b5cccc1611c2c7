"""A bench as a table and as JSON."""

import dataclasses
import json
from collections.abc import Sequence
from statistics import median
from typing import cast

from wiola_export.bench.contest import Bench, Measured
from wiola_export.report.document import Table
from wiola_export.report.figures import significant
from wiola_runtime.decode import decode

MB = 1e6
# Column, field of `Figures`, factor to the unit of the column.
COLUMNS: Sequence[tuple[str, str, float]] = (
    ("decode, tokens/s", "decode_tokens_per_second", 1),
    ("decode, deep", "deep_tokens_per_second", 1),
    ("prefill, tokens/s", "prefill_tokens_per_second", 1),
    ("first token, ms", "first_token_seconds", 1e3),
    ("load, s", "load_seconds", 1),
    ("verify, s", "verify_seconds", 1),
    ("peak memory, MB", "memory_bytes", 1 / MB),
    ("weights a token, MB", "weight_bytes", 1 / MB),
)


def to_table(bench: Bench, columns: Sequence[str] = ()) -> Table:
    """Make a row of medians for each contestant, decoding with its extremes; of some columns."""
    last = ("import, s", "start to first token, s", "of read bandwidth")
    head = ("", *(name for name, _, _ in COLUMNS), *last)
    shown = [i for i, name in enumerate(head) if not name or not columns or name in columns]
    rows = (head, *(_row(one, bench) for one in bench.contestants))
    head, *rest = (tuple(row[i] for i in shown) for row in rows)
    return Table(head=head, rows=tuple(rest))


def to_json(bench: Bench) -> str:
    """Write everything, keys sorted."""
    return json.dumps(dataclasses.asdict(bench), indent=2, sort_keys=True) + "\n"


def from_json(text: str) -> Bench:
    """Read what `to_json` wrote.

    Raises:
        ValueError: It is no JSON.
        BundleError: It is something else.
    """
    return cast("Bench", decode(Bench, json.loads(text), "bench"))


def summary(bench: Bench) -> str:
    """Say in one paragraph where and how it was measured."""
    machine, work = bench.machine, bench.workload
    features = ", ".join(machine.features) or "CPU features unknown"
    count = len(bench.contestants[0].rounds)
    rounds = f"{count} rounds in turns" if count > 1 else "one round"
    deep = f", and {work.deep_reply_tokens} behind {work.depth_tokens}" if work.depth_tokens else ""
    return (
        f"{machine.cpu} ({features}), {machine.system}, {machine.logical_cpus} logical CPUs, "
        f"{bench.threads} threads; huge pages: {bench.huge_pages or 'unknown'}; memory reads "
        f"{bench.read_bytes_per_second / 1e9:.1f} GB/s. Medians of {rounds}: "
        f"{work.reply_tokens} tokens behind {work.prompt_tokens}{deep}; prefill of "
        f"{work.prefill_tokens}; first token of {work.prompt_tokens}."
    )


def versions(bench: Bench) -> str:
    """Say in one line what computed; those of the same versions together."""
    names: dict[str, list[str]] = {}
    for one in bench.contestants:
        told = ", ".join(" ".join(pair) for pair in sorted(one.rounds[0].versions.items()))
        names.setdefault(told or "not told", []).append(one.name)
    return "Versions: " + "; ".join(f"{', '.join(names[told])}: {told}" for told in names) + "."


def _row(one: Measured, bench: Bench) -> tuple[str, ...]:
    cells = [_cell(one, field, factor) for _, field, factor in COLUMNS]
    decode = one.values("decode_tokens_per_second")
    cells[0] += f" ({significant(min(decode))}–{significant(max(decode))})"
    imports = [seconds for seconds in one.import_seconds if seconds is not None]
    times = (
        significant(median(seconds)) if seconds else "–" for seconds in (imports, one.start_seconds)
    )
    return (one.name, *cells, *times, _share(one, bench))


def _cell(one: Measured, field: str, factor: float) -> str:
    value = one.median(field)
    return "–" if value is None else significant(value * factor)


def _share(one: Measured, bench: Bench) -> str:
    """Say how much of the measured bandwidth the weights of a step use; caches not counted."""
    rate, weights = one.median("decode_tokens_per_second"), one.median("weight_bytes")
    if rate is None or weights is None:
        return "–"
    return f"{rate * weights / bench.read_bytes_per_second:.2f}"
