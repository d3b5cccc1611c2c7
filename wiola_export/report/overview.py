"""Several bundles of one checkpoint side by side."""

import json
from collections.abc import Mapping, Sequence

from wiola_export.report.document import Table
from wiola_export.report.figures import code, fixed, percent, scientific, significant, size, span
from wiola_export.report.report import SCHEMA_VERSION, Report, figures_of

HEAD = (
    *("bundle", "target", "size", "bits", "ratio of perplexities", "95 % interval", "KL, nats"),
    *("same token", "prompt, tokens/s", "reply, tokens/s", "memory"),
)
UNKNOWN = "–"


def overview(reports: Mapping[str, Report]) -> Table:
    """Return one row for each bundle, in the order given; bits are those of one weight."""
    return Table(
        HEAD,
        tuple(
            (code(name), report.subject.target, *_size(report), *_accuracy(report), *_speed(report))
            for name, report in reports.items()
        ),
    )


def overview_title(reports: Mapping[str, Report]) -> str:
    """Say what is compared."""
    return f"{len(reports)} bundles of one checkpoint"


def unique_names(names: Sequence[str]) -> list[str]:
    """Number the names that occur again: `a`, `a #2`."""
    counts = [names[: i + 1].count(name) for i, name in enumerate(names)]
    return [n if k == 1 else f"{n} #{k}" for n, k in zip(names, counts, strict=True)]


def to_json_all(reports: Mapping[str, Report]) -> str:
    """Write several reports with sorted keys, each as it is written alone, in the order given."""
    figures = {
        "schema_version": SCHEMA_VERSION,
        "reports": [{"name": name} | figures_of(report) for name, report in reports.items()],
    }
    return json.dumps(figures, indent=2, sort_keys=True, allow_nan=False) + "\n"


def _size(report: Report) -> tuple[str, str]:
    bits = report.sizes.bits_per_weight
    return size(report.sizes.total_bytes), UNKNOWN if bits is None else significant(bits)


def _accuracy(report: Report) -> tuple[str, ...]:
    if report.accuracy is None:
        return (UNKNOWN,) * 4
    drop = report.accuracy.drop
    return (
        *(fixed(4)(drop.ppl_ratio), span(drop.intervals.ppl_ratio, fixed(4))),
        *(scientific(drop.kl_nats.mean), percent(drop.top1_agreement)),
    )


def _speed(report: Report) -> tuple[str, ...]:
    speed = report.speed
    if speed is None:
        return (UNKNOWN,) * 3
    rates = (speed.prefill_tokens_per_second, speed.decode_tokens_per_second)
    memory = speed.peak_memory_bytes
    return *map(significant, rates), UNKNOWN if memory is None else size(memory)
