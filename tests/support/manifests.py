"""Manifests with the sizes and the quantized matrices that a report reads."""

import dataclasses

from wiola_calibration import TextRecord
from wiola_export.evaluate import Divergence, Drop, Machine, Speed
from wiola_export.evaluate.bootstrap import Interval
from wiola_export.evaluate.drop import (
    Intervals,
    PositionBin,
    ProbabilityChange,
    histogram_borders,
)
from wiola_export.evaluate.greedy import Continuation
from wiola_export.evaluate.ladder import Ladder, Rung
from wiola_export.report import Accuracy
from wiola_runtime import manifest as contract

HISTOGRAM_BINS = len(histogram_borders()) - 1


def drop(*, windows, reference_ppl, candidate_ppl, ratio=None, **changes):
    """A plausible drop; without a ratio's interval it has none at all."""
    kl = Divergence(
        mean=2.413e-4,
        median=1.72e-4,
        p90=5.4e-4,
        p99=1.31e-3,
        p999=4.7e-3,
        max=0.0218,
        histogram=tuple(
            round(windows * 255 / 15 * max(0, 5 - abs(i - 17))) for i in range(HISTOGRAM_BINS)
        ),
    )
    change = ProbabilityChange(
        mean=-2.5e-5, rms=2.9e-3, p1=-9.1e-3, p10=-1.4e-3, median=-1e-6, p90=1.3e-3, p99=8.8e-3
    )
    intervals = {
        "reference_ppl": Interval(reference_ppl * 0.96, reference_ppl * 1.05),
        "candidate_ppl": Interval(candidate_ppl * 0.96, candidate_ppl * 1.05),
        "ppl_ratio": ratio and Interval(*ratio),
        "kl_nats": Interval(2.2e-4, 2.6e-4),
        "top1_agreement": Interval(0.984, 0.99),
        "top5_agreement": Interval(0.989, 0.993),
        "probability_change": Interval(-6e-5, 1e-5),
    }
    fields = {
        "reference_ppl": reference_ppl,
        "candidate_ppl": candidate_ppl,
        "kl_nats": kl,
        "top1_agreement": 0.98714,
        "top5_agreement": 0.99118,
        "probability_change": change,
        "positions": (
            PositionBin(start=1, stop=128, top1_agreement=0.9821, kl_nats=2.9e-4),
            PositionBin(start=128, stop=256, top1_agreement=0.9922, kl_nats=1.9e-4),
        ),
        "intervals": Intervals(**(intervals if ratio else dict.fromkeys(intervals))),
        "tokens": windows * 255,
        "windows": windows,
        "context": 256,
    }
    return Drop(**fields | changes)


DROP = drop(windows=12, reference_ppl=42.0038, candidate_ppl=42.0331, ratio=(0.99981, 1.00157))
AUSTEN = TextRecord(
    name="austen",
    description="19th-century English prose (the six novels of Jane Austen)",
    sha256="4f" * 32,
    size_bytes=143414,
    context=256,
    windows=8,
    tokens=9000,
    dropped_tokens=6952,
    complete=False,
)
MINE = TextRecord(
    name="mine.txt",
    description="",
    sha256="ab" * 32,
    size_bytes=4500,
    context=256,
    windows=4,
    tokens=1100,
    dropped_tokens=76,
    complete=True,
)


def rung(name, compared_with, *, kl_nats, ppl_ratio, ppl=42.0):
    """One step of a ladder; its interval is narrow."""
    return Rung(
        name=name,
        ppl=ppl,
        ppl_interval=Interval(ppl * 0.96, ppl * 1.05),
        compared_with=compared_with,
        ppl_ratio=ppl_ratio,
        ppl_ratio_interval=Interval(ppl_ratio - 8e-4, ppl_ratio + 8e-4),
        kl_nats=kl_nats,
        top1_agreement=0.99,
    )


CHECKPOINT = Rung(
    name="checkpoint", ppl=42.0, ppl_interval=Interval(40.3, 44.1), compared_with=None,
    ppl_ratio=None, ppl_ratio_interval=None, kl_nats=None, top1_agreement=None,
)  # fmt: skip


def ladder(*, graph_nats=3e-9, graph_missing=""):
    """A ladder whose graph is that far from the checkpoint, or which has none."""
    start = "float16" if graph_missing else "graph"
    graph = rung("graph", "checkpoint", kl_nats=graph_nats, ppl_ratio=1.0)
    return Ladder(
        rungs=(
            CHECKPOINT,
            rung("float16", "checkpoint", kl_nats=1.2e-8, ppl_ratio=1.0),
            *(() if graph_missing else (graph,)),
            rung("bundle", start, kl_nats=2.4e-4, ppl_ratio=1.0007),
        ),
        precision="fp32",
        graph_missing=graph_missing,
        tokens=12 * 255,
        windows=12,
    )


CONTINUATIONS = (
    Continuation(
        prompt="It is a truth", reference=" that he had been", candidate=" that he was not",
        same_tokens=2, tokens=4,
    ),
    Continuation(
        prompt="In the <b>beginning", reference=" was | the *word*",
        candidate=" was | the *word*", same_tokens=4, tokens=4,
    ),
)  # fmt: skip
ACCURACY = Accuracy(
    drop=DROP,
    texts=(AUSTEN, MINE),
    by_text=(
        drop(windows=8, reference_ppl=38.2, candidate_ppl=38.3, ratio=(1.0003, 1.0049)),
        drop(windows=4, reference_ppl=61.0, candidate_ppl=60.9),
    ),
    ladder=ladder(),
    continuations=CONTINUATIONS,
)
ERRORS = {
    "embedding": 8.1e-6, "head": 8.1e-6, "layers.0.qkv_gate": 3.4e-5, "layers.0.up": 4.2e-5,
    "layers.0.fusion": 0.0,
}  # fmt: skip
SPEED = Speed(
    load_seconds=0.0834,
    first_token_seconds=0.0517,
    prefill_tokens_per_second=4951.3,
    decode_tokens_per_second=1387.9,
    peak_memory_bytes=88 << 20,
    prefill_tokens=256,
    decode_tokens=64,
    repeats=3,
    threads=2,
    provider="CPUExecutionProvider",
)
MACHINE = Machine(
    system="Linux x86_64",
    cpu="Sample CPU 9000",
    features=("avx2", "avx512_vnni"),
    logical_cpus=4,
    versions={"python": "3.12.1", "numpy": "2.0.0", "onnxruntime": "1.32.0"},
)


def matrix(name, shape, *, sources=(), bits=8, size_bytes=None, note="", **changes):
    """One weight matrix; its size is that of its bits, without scales, unless given."""
    tensor = contract.QuantizedTensor(
        name=name,
        sources=tuple(sources),
        shape=shape,
        bits=bits,
        block_size=64 if bits <= 8 else 0,
        symmetric=False,
        size_bytes=shape[0] * shape[1] * bits // 8 if size_bytes is None else size_bytes,
        note=note,
    )
    return dataclasses.replace(tensor, **changes)


MATRICES = (
    matrix("embedding", (4096, 192), sources=["model.embed_tokens.weight"], size_bytes=835_584),
    matrix("head", (4096, 192), size_bytes=0, note="shares the bytes of embedding"),
    matrix(
        "layers.0.qkv_gate",
        (512, 192),
        sources=["model.layers.0.attn.q_proj.weight", "model.layers.0.attn.k_proj.weight"],
    ),
    matrix("layers.0.up", (1152, 192), sources=["model.layers.0.ffn.gate_a.weight"]),
    matrix(
        "layers.0.fusion",
        (192, 8),
        sources=["model.layers.0.ffn.fusion.weight"],
        bits=32,
        note="8 columns are less than one block",
    ),
)


def manifest(matrices=MATRICES, **changes):
    """Describe a small bundle; `changes` replace fields."""
    weights = sum(tensor.size_bytes for tensor in matrices)
    sizes = {
        "model.onnx": 50_000,
        "model.onnx.data": weights + 4096,
        "tokenizer.json": 266_648,
        "report.json": 5000,
        "README.md": 2000,
    }
    whole = contract.Manifest(
        format_version=contract.FORMAT_VERSION,
        name="wiola-demo-int8",
        family="gcla",
        variant="demo",
        weights="trained",
        precision="int8",
        target="cpu",
        context_length=512,
        vocab_size=4096,
        cache="shared",
        inputs=(),
        outputs=(),
        states=(),
        tokens=contract.TokenSpec(bos_id=1, adds_bos=False, eos_ids=(2,), pad_id=0),
        chat=None,
        generation_defaults={},
        graph=contract.GraphSpec(
            file="model.onnx", opset=21, domains=("",), minimum_onnxruntime="1.23"
        ),
        quantization=contract.QuantizationSpec(
            scheme="weight-only",
            bits=8,
            block_size=64,
            method="gptq",
            smoothing=None,
            calibrator=None,
            tensors=tuple(matrices),
        ),
        self_test=None,
        source=contract.SourceSpec(checkpoint_sha256="cd" * 32, seed=None),
        producer={},
        files={
            name: contract.FileSpec(size_bytes=count, sha256="00" * 32)
            for name, count in sizes.items()
        },
    )
    return dataclasses.replace(whole, **changes)


def random_manifest():
    """Describe a bundle of seeded random weights."""
    return manifest(
        name="wiola-120m-int8",
        variant="120m",
        weights="random",
        source=contract.SourceSpec(checkpoint_sha256=None, seed=0),
    )
