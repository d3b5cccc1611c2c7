"""From the semantic graph to one that a target runs fast, as lists that you can read."""

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes import common

from wiola_export.contract import PAST_LENGTHS, TOKEN_IDS
from wiola_export.errors import LoweringError
from wiola_export.functions import DOMAIN
from wiola_export.passes.fold_blend import FoldBlend
from wiola_export.passes.fuse_activations import FuseActivations
from wiola_export.passes.fuse_attention import FuseAttention
from wiola_export.passes.fuse_context import FuseContext
from wiola_export.passes.fuse_moments import FuseMoments
from wiola_export.passes.fuse_norms import FuseNorms
from wiola_export.passes.fuse_rotary import FuseRotary
from wiola_export.passes.half_precision import HalfPrecision
from wiola_export.passes.lower_weights import LowerWeights
from wiola_export.passes.merge_rotary import MergeRotary
from wiola_export.passes.ort_kernels import OrtKernels
from wiola_export.passes.pack_linears import PackLinears
from wiola_export.passes.row_lengths import RowLengths
from wiola_export.passes.standard_kernels import StandardKernels
from wiola_export.passes.unit_gain import UnitGain
from wiola_export.quantize.formats import Format, StaticRows
from wiola_export.quantize.policy import Policy
from wiola_export.weights import Weight
from wiola_runtime.manifest import QuantizedTensor, Target

Passes = tuple[ir.passes.PassBase, ...]


def structure(target: Target, policy: Policy, context_length: int) -> Passes:
    """Return the passes that bring a target's kernels in, weights aside."""
    if target == "portable":
        return ()
    lengths = RowLengths(token_ids=TOKEN_IDS, past_lengths=PAST_LENGTHS)

    def form(weight: Weight) -> Format:
        return policy.decide("matrix", weight.shape[1], weight.sources[0]).form

    fused: Passes = (
        FoldBlend(),
        PackLinears(form),
        UnitGain(),
        FuseNorms(),
        FuseRotary(context_length),
        MergeRotary(),
        FuseAttention(lengths),
        # Calibrated ranges are those of the summaries themselves.
        FuseContext(lambda weight: not isinstance(form(weight), StaticRows)),
        FuseActivations(),
    )
    # In float16 squares lose what variances consist of, so cuda keeps moments apart, in float32.
    return (*fused, HalfPrecision()) if target == "cuda" else (*fused, FuseMoments(lengths))


def cleanup() -> Passes:
    """Return the passes that write out what is left of the domain and drop what is unused."""
    return (
        common.InlinePass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
        common.CommonSubexpressionEliminationPass(),
        common.IdentityEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
    )


def lower(
    model: ir.Model, target: Target, policy: Policy, *, context_length: int
) -> tuple[ir.Model, Sequence[QuantizedTensor]]:
    """Lower a semantic graph for a target.

    Returns:
        The graph, its big initializers still recipes, and how each weight is stored.

    Raises:
        LoweringError: Something has no form on the target.
    """
    kernels = StandardKernels() if target == "portable" else OrtKernels()
    weights = LowerWeights(policy, kernels)
    passes = (*structure(target, policy, context_length), weights, *cleanup())
    for rewrite in passes:  # not ir.passes.Sequential, which hides the errors of its passes
        model = rewrite(model).model
    prove_lowered(model, target)
    return model, weights.stored


def prove_lowered(model: ir.Model, target: Target) -> None:
    """Check that only the target's operators are left.

    Raises:
        LoweringError: A call of the domain, a function, or a foreign operator remains.
    """
    allowed = {""} if target == "portable" else {"", "com.microsoft"}
    left = sorted({f"{n.domain}::{n.op_type}" for n in model.graph if n.domain not in allowed})
    if left or model.functions:
        names = left or [str(identifier) for identifier in model.functions]
        raise LoweringError(
            f"target {target} has no form of {', '.join(names)}; add a pass to its list"
        )
    assert DOMAIN not in model.graph.opset_imports
