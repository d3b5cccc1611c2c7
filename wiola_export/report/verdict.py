"""The report in a sentence or two; it claims nothing that the text cannot show."""

from wiola_export.evaluate.bootstrap import FEWEST_WINDOWS
from wiola_export.evaluate.drop import Drop
from wiola_export.evaluate.ladder import Ladder
from wiola_export.report.figures import fixed, percent, scientific, significant, size, span
from wiola_export.report.report import Report
from wiola_export.report.size import Sizes

RANDOM_WEIGHTS = "Random weights: no accuracy can be stated."
UNFAITHFUL = "The conversion changed the model before any weight was quantized"


def verdict(report: Report) -> str:
    """Say in a few sentences what the bundle keeps and what it takes."""
    takes = _takes(report.sizes)
    if report.weights == "random":
        return f"{RANDOM_WEIGHTS} {takes}"
    if report.accuracy is None:
        return f"Accuracy was not measured. {takes}"
    drop, ladder = report.accuracy.drop, report.accuracy.ladder
    warning = f"{UNFAITHFUL}: do not judge the format by these figures. "
    return (
        f"{warning if ladder and ladder.is_faithful is False else ''}"
        f"{report.subject.precision.upper()} keeps {percent(drop.top1_agreement)} of the float "
        f"model's most likely tokens; perplexity {drop.reference_ppl:.2f} → "
        f"{drop.candidate_ppl:.2f} (ratio {drop.ppl_ratio:.4f}{_certainty(drop)}). {takes}"
    )


def difference(drop: Drop) -> str:
    """Say whether the text shows a difference of the perplexities."""
    ratio = drop.intervals.ppl_ratio
    if ratio is None:
        return (
            f"{_windows(drop.windows)} {'is' if drop.windows == 1 else 'are'} too little text to "
            f"show a difference: give at least {FEWEST_WINDOWS * drop.context:,} tokens"
        )
    if ratio.holds(1.0):
        return "no difference of the perplexities can be shown with this text"
    return f"the perplexity is {'higher' if ratio.low > 1 else 'lower'} than the reference's"


def conversion(ladder: Ladder) -> str:
    """Say whether the graph computes what the checkpoint does."""
    rung = ladder.conversion
    if rung is None:
        return (
            f"Whether the conversion is faithful was not measured: {ladder.graph_missing}. "
            "What it may have cost is counted as the quantization's."
        )
    assert rung.kl_nats is not None
    distance = f"{scientific(rung.kl_nats)} nats from the checkpoint"
    if ladder.is_faithful:
        return f"The conversion is faithful: the graph is {distance}."
    return (
        f"{UNFAITHFUL}: the graph is {distance}. Look for the fault in the conversion, "
        "not in the format of the weights."
    )


def _takes(sizes: Sizes) -> str:
    bits = sizes.bits_per_weight
    width = "" if bits is None else f", {significant(bits)} bits per weight of its matrices"
    return f"The bundle takes {size(sizes.total_bytes)}{width}."


def _certainty(drop: Drop) -> str:
    ratio = drop.intervals.ppl_ratio
    if ratio is None:
        return f"; {difference(drop)}"
    ends = f", 95 % interval {span(ratio, fixed(4))}"
    return f"{ends}: {difference(drop)}" if ratio.holds(1.0) else ends


def _windows(count: int) -> str:
    return f"{count} window" if count == 1 else f"{count} windows"
