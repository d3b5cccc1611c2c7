"""Compare our quantizers with published ones, on matrices of the demo and what they read.

Usage: python published_quantizers.py [LAYER ...]      (default: all layers)
Needs, besides this package: pip install llmcompressor==0.14.0.1 hqq==0.2.8.post1
It takes some minutes, and prints one table of GPTQ and one of HQQ. Nothing is asserted.

Errors are shares: of the squared products with the calibration inputs (GPTQ), and of the sum
of |w|^0.7 (HQQ). Axes: N rows, K input features, b blocks of a row, k features of a block.
"""

import sys
from importlib.metadata import version

import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.utils import calculate_qparams
from hqq.core.quantize import Quantizer
from llmcompressor.modifiers.gptq.gptq_quantize import quantize_weight

from wiola_calibration import packaged_calibration
from wiola_export.calibrate.gptq import gptq, metric_of
from wiola_export.calibrate.hidden import window_groups
from wiola_export.calibrate.moments import Moments
from wiola_export.calibrate.taps import inputs_of, stages
from wiola_export.options import CalibrationOptions, Source
from wiola_export.prepare import calibration_windows
from wiola_export.quantize.formats import Blocks
from wiola_export.quantize.hqq import hqq_blocks
from wiola_export.quantize.packing import pad_to_blocks
from wiola_export.quantize.rounding import round_matrix
from wiola_export.reference import open_executor, read_tensor
from wiola_export.source import find_model

FORMS = (Blocks(bits=4, block_size=32), Blocks(bits=8, block_size=64))
HQQ_NORM = 0.7


def main(chosen):
    for package in ("llmcompressor", "compressed-tensors", "hqq", "torch", "numpy"):
        print(package, version(package))
    matrices = list(matrices_read(set(chosen)))
    print("\n| matrix | bits | nearest | ours | theirs, our ranges | theirs | equal codes |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    totals = {form: [] for form in FORMS}
    for name, weight, moments in matrices:
        for form in FORMS:
            row = compare_gptq(weight, moments, form)
            totals[form].append(row)
            if name.endswith(("ffn.down_b.weight", "attn.v_proj.weight")):
                print_row(name.removeprefix("model."), form, row)
    for form, rows in totals.items():
        print_row(f"geometric mean of {len(rows)}", form, np.exp(np.log(rows).mean(axis=0)))
    print("\n| bits | min-max | least squares | ours | theirs, zero points rounded | theirs |")
    print("|---:|---:|---:|---:|---:|---:|")
    for form in FORMS:
        rows = [compare_hqq(weight.numpy(), form) for _, weight, _ in matrices]
        means = " | ".join(f"{value:.4f}" for value in np.mean(rows, axis=0))
        print(f"| {form.bits} | {means} |")


def matrices_read(chosen):
    """Yield name, weight (N, K) and Σ x xᵀ (K, K) of every matrix of the chosen layers."""
    model = find_model(Source(variant="demo"))
    windows = calibration_windows(model, packaged_calibration(), CalibrationOptions(), []).windows
    executor = open_executor(model, lambda name: read_tensor(model, name))
    with torch.no_grad():
        weights = executor.head_weights()
        states = [executor.embed(ids, weights) for ids in window_groups(windows)]
        for index, layer in enumerate(executor.layers()):
            if not chosen or index in chosen:
                yield from read_by(layer, states)
            states = [layer.run(hidden) for hidden in states]


def read_by(layer, states):
    """Yield the matrices of one layer, none of them quantized."""
    groups = stages(layer, states[0])
    moments = {group: Moments(layer.weights[group[0]].shape[1]) for group in groups}
    for hidden in states:
        for group, x in inputs_of(layer, groups, hidden, layer.weights).items():
            moments[group].add(x, x)
    for group in groups:
        for name in group:
            yield layer.full_name(name), layer.weights[name], moments[group].inputs


def compare_gptq(weight, moments, form):
    """Return relative errors: nearest, ours, theirs on our ranges, theirs; share of equal codes."""
    columns = weight.shape[1]
    whole = -(-columns // form.block_size) * form.block_size
    weight = torch.nn.functional.pad(weight, (0, whole - columns))
    moments = torch.nn.functional.pad(moments, (0, whole - columns, 0, whole - columns))
    nearest = round_matrix(weight.numpy(), form)
    ours = gptq(weight.clone(), metric_of(moments.clone()), form)
    scales = torch.from_numpy(nearest.scales.astype(np.float32))
    zeros = torch.from_numpy(nearest.zero_points.astype(np.float32)) - form.middle
    same_ranges = published_gptq(weight, moments, form, scales, zeros)
    blocks = weight.reshape(len(weight), -1, form.block_size)
    own = calculate_qparams(blocks.amin(-1), blocks.amax(-1), quant_args(form))
    theirs = published_gptq(weight, moments, form, own[0], own[1].float())
    codes = torch.round(
        same_ranges.reshape(blocks.shape) / scales[..., None] + zeros[..., None] + form.middle
    )
    equal = (codes.numpy() == ours.codes).mean()
    found = [torch.from_numpy(made.matrix(whole)) for made in (nearest, ours)]
    return [error(weight, w, moments) for w in (*found, same_ranges, theirs)] + [equal]


def quant_args(form):
    return QuantizationArgs(
        num_bits=form.bits,
        type="int",
        symmetric=False,
        strategy="group",
        group_size=form.block_size,
        actorder="weight",
    )


def published_gptq(weight, moments, form, scales, zero_points):
    """Return the weights as llmcompressor leaves them, with static groups in activation order."""
    quantized, _, fell_back = quantize_weight(
        weight.clone()[None],
        moments.clone()[None],
        scales[None],
        zero_points[None],
        None,
        quant_args(form),
    )
    assert not fell_back.any()
    return quantized[0]


def error(weight, rounded, moments):
    """Return tr(ΔW H ΔWᵀ) / tr(W H Wᵀ), in float64."""
    weight, difference, moments = weight.double(), (weight - rounded).double(), moments.double()
    return float(((difference @ moments) * difference).sum() / ((weight @ moments) * weight).sum())


def compare_hqq(weight, form):
    """Return Σ |w − ŵ|^p / Σ |w|^p: min-max, least squares, ours, theirs rounded, theirs."""
    blocks = pad_to_blocks(weight, form.block_size)
    blocks = blocks[:, : weight.shape[1] // form.block_size]
    made = (
        spanning_blocks(blocks, form),
        round_matrix(blocks.reshape(len(blocks), -1), form).dequantize(),
        hqq_blocks(blocks, form).dequantize(),
        *(published_hqq(blocks, form, whole=whole) for whole in (True, False)),
    )
    return [norm(blocks - found) / norm(blocks) for found in made]


def spanning_blocks(blocks, form):
    low, high = np.minimum(blocks.min(-1), 0), np.maximum(blocks.max(-1), 0)
    scales = (high - low)[..., None] / form.highest_code
    zeros = np.rint(-low[..., None] / scales)
    return (np.rint(blocks / scales + zeros).clip(0, form.highest_code) - zeros) * scales


def published_hqq(blocks, form, *, whole):
    """Return blocks as the package hqq leaves them; kernels of ours read whole zero points only."""
    rows = torch.from_numpy(np.ascontiguousarray(blocks.reshape(-1, form.block_size)))
    codes, meta = Quantizer.quantize(
        rows, nbits=form.bits, group_size=form.block_size, axis=1, bitpack=False, device="cpu"
    )
    zeros, scales = meta["zero"].float(), meta["scale"].float()
    if whole:
        zeros = torch.round(zeros)
        codes = torch.round(rows / scales + zeros).clamp(0, form.highest_code)
    return ((codes.float() - zeros) * scales).reshape(blocks.shape).numpy()


def norm(array):
    return float((np.abs(array.astype(np.float64)) ** HQQ_NORM).sum())


def print_row(name, form, row):
    errors = " | ".join(f"{value:.3e}" for value in row[:4])
    print(f"| {name} | {form.bits} | {errors} | {100 * row[4]:.1f} % |", flush=True)


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])
