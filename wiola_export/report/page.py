"""The report as one page that needs nothing else: no network, no script, no second file."""

import dataclasses
import re
from collections.abc import Iterator, Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from wiola_export.evaluate.bootstrap import Interval
from wiola_export.evaluate.greedy import Continuation
from wiola_export.evaluate.ladder import Ladder, Rung, RungName
from wiola_export.report.accuracy_sections import rung_names
from wiola_export.report.document import Bullets, Table
from wiola_export.report.figures import (
    fixed,
    percent,
    scientific,
    seconds,
    significant,
    size,
    span,
)
from wiola_export.report.overview import overview, overview_title
from wiola_export.report.pictures.gallery import overview_pictures, pictures
from wiola_export.report.report import Report
from wiola_export.report.sections import sections
from wiola_export.report.verdict import verdict

TEMPLATE = "page.html.jinja"


@dataclasses.dataclass(frozen=True, slots=True)
class Tile:
    """One figure that is large enough to be read from afar."""

    label: str
    value: str
    note: str


@dataclasses.dataclass(frozen=True, slots=True)
class Sides:
    """Two continuations beside each other, cut where they part."""

    prompt: str
    common: str
    reference: str
    candidate: str
    where: str


def to_html(reports: Mapping[str, Report]) -> str:
    """Write one page about one bundle, or about several of one checkpoint, by name."""
    environment = Environment(
        loader=PackageLoader("wiola_export.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["inline"] = inline
    environment.tests["table"] = lambda block: isinstance(block, Table)
    environment.tests["bullets"] = lambda block: isinstance(block, Bullets)
    environment.tests["continuation"] = lambda block: isinstance(block, Continuation)
    return environment.get_template(TEMPLATE).render(
        articles=[
            _article(f"bundle-{number}", name, report)
            for number, (name, report) in enumerate(reports.items(), start=1)
        ],
        overview=_overview(reports) if len(reports) > 1 else None,
        sides=sides,
    )


def inline(text: str) -> Markup:
    """Escape a sentence, then show what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped


def sides(one: Continuation) -> Sides:
    """Cut two continuations at their first different character."""
    both = zip(one.reference, one.candidate, strict=False)
    shortest = min(len(one.reference), len(one.candidate))
    cut = next((i for i, (mine, other) in enumerate(both) if mine != other), shortest)
    apart = f"token {one.same_tokens + 1} of {one.tokens} is the first to differ"
    return Sides(
        prompt=one.prompt,
        common=one.reference[:cut],
        reference=one.reference[cut:],
        candidate=one.candidate[cut:],
        where=f"all {one.tokens} tokens alike" if one.same_tokens == one.tokens else apart,
    )


def _article(key: str, name: str, report: Report) -> dict[str, object]:
    accuracy = report.accuracy
    return {
        "key": key,
        "name": name,
        "verdict": verdict(report),
        "chips": list(_chips(report)),
        "tiles": list(_tiles(report)),
        "rungs": list(_rungs(accuracy.ladder, report)) if accuracy and accuracy.ladder else [],
        "sections": list(sections(report)),
        "pictures": pictures(report, key),
    }


def _chips(report: Report) -> Iterator[str]:
    """Yield what a bundle is, in words of the options that made it."""
    subject = report.subject
    yield subject.precision.upper()
    yield subject.scheme
    if subject.method is not None:
        yield subject.method
    if subject.smoothing is not None:
        yield f"smoothed {subject.smoothing:g}"
    if subject.block_size:
        yield f"blocks of {subject.block_size}"
    yield f"target {subject.target}"
    yield f"family {subject.family}"
    if report.calibration is not None:
        yield "calibrated"


def _tiles(report: Report) -> Iterator[Tile]:
    if report.accuracy is not None:
        drop = report.accuracy.drop
        ends = drop.intervals
        top1 = percent(drop.top1_agreement)
        yield Tile("same top token", top1, _percents(ends.top1_agreement))
        ratio = fixed(4)(drop.ppl_ratio)
        yield Tile("ratio of perplexities", ratio, span(ends.ppl_ratio, fixed(4)))
        mean = scientific(drop.kl_nats.mean)
        yield Tile("KL divergence, nats", mean, span(ends.kl_nats, scientific))
    bits = report.sizes.bits_per_weight
    width = "" if bits is None else f"{significant(bits)} bits per weight"
    yield Tile("size", size(report.sizes.total_bytes), width)
    if report.speed is not None:
        rate = significant(report.speed.decode_tokens_per_second)
        prompt = f"{significant(report.speed.prefill_tokens_per_second)} for the prompt"
        yield Tile("tokens a second", rate, prompt)
        memory = report.speed.peak_memory_bytes
        yield Tile(
            "peak memory",
            "unknown" if memory is None else size(memory),
            f"loads in {seconds(report.speed.load_seconds)}",
        )


def _percents(ends: Interval | None) -> str:
    return f"{percent(ends.low).removesuffix(' %')} to {percent(ends.high)}" if ends else "–"


def _rungs(ladder: Ladder, report: Report) -> Iterator[dict[str, object]]:
    names = rung_names(ladder, report.subject.precision)
    for rung in ladder.rungs:
        yield {
            "name": names[rung.name],
            "ppl": f"{rung.ppl:.3f}",
            "step": _step(rung, names) if rung.compared_with else "",
            "at_fault": ladder.is_faithful is False and rung is ladder.conversion,
        }


def _step(rung: Rung, names: Mapping[RungName, str]) -> str:
    assert rung.compared_with is not None
    assert rung.kl_nats is not None
    assert rung.ppl_ratio is not None
    start = names[rung.compared_with].partition(",")[0]
    return f"{scientific(rung.kl_nats)} nats from the {start}"


def _overview(reports: Mapping[str, Report]) -> dict[str, object]:
    return {
        "title": overview_title(reports),
        "table": overview(reports),
        "pictures": list(overview_pictures(reports)),
    }
