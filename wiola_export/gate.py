"""Refuse a bundle that is less accurate than was asked for."""

from collections.abc import Sequence

from wiola_export.errors import AccuracyError, QuantizationError
from wiola_export.options import Budget
from wiola_export.report.coverage import QUANTIZED_BITS
from wiola_export.report.report import Report
from wiola_export.report.tensors import TensorFigures
from wiola_runtime.manifest import Precision, QuantizedTensor

NAMED_TENSORS = 5


def require_accuracy(report: Report, budget: Budget) -> None:
    """Compare what was measured with the limits.

    Raises:
        AccuracyError: One is missed; the message names the tensors that cost most.
    """
    if report.accuracy is None:
        return
    drop = report.accuracy.drop
    checks = (
        ("mean KL divergence", drop.kl_nats.mean, budget.max_kl, "--max-kl"),
        ("ratio of perplexities", drop.ppl_ratio, budget.max_ppl_ratio, "--max-ppl-ratio"),
    )
    for what, found, limit, option in checks:
        if limit is not None and not found <= limit:
            raise AccuracyError(
                f"{what} is {found:.4g}, more than {option} {limit:g}; nothing was written. "
                f"Tensors that cost most: {', '.join(worst(report.tensors))}. {_way_out(report)}"
            )


def _way_out(report: Report) -> str:
    """Say what may help: a plan does where weights are rounded in blocks."""
    subject = report.subject
    if subject.scheme == "weight-only":
        return "Give them more bits in a --plan, or raise the limit"
    if subject.smoothing is None:
        return "Give --smooth 0.75 or --scheme weight-only, or raise the limit"
    return "Give --scheme weight-only, or raise the limit"


def require_rounding(stored: Sequence[QuantizedTensor], precision: Precision) -> None:
    """Check that a bundle of integers holds some.

    Raises:
        QuantizationError: No matrix is rounded.
    """
    rounded = [tensor for tensor in stored if tensor.bits <= QUANTIZED_BITS]
    if precision in ("int8", "int4") and not rounded:
        raise QuantizationError(
            f"--{precision} was asked for, but 0 of {len(stored)} matrices are rounded; give some "
            "of them bits in the plan, or take --fp32"
        )


def worst(tensors: Sequence[TensorFigures]) -> list[str]:
    """Name the rounded matrices that cost most: by sensitivity, or else by their own error."""
    rounded = [tensor for tensor in tensors if tensor.bits <= QUANTIZED_BITS]
    ranked = sorted(
        rounded,
        key=lambda tensor: (tensor.sensitivity_nats or 0.0, tensor.relative_error or 0.0),
        reverse=True,
    )
    return [tensor.name.removesuffix(".weight") for tensor in ranked[:NAMED_TENSORS]]
