"""Manifests with the sizes and the quantized matrices that a report reads."""

import dataclasses

from wiola_calibration import TextRecord
from wiola_export.evaluate import Divergence, Drop, Machine, Speed
from wiola_export.report import Accuracy
from wiola_runtime import manifest as contract

DROP = Drop(
    reference_ppl=42.0038,
    candidate_ppl=42.0331,
    kl_nats=Divergence(mean=2.413e-4, median=1.72e-4, p99=1.31e-3, max=0.0218),
    top1_agreement=0.98714,
    tokens=765,
    windows=3,
    context=256,
)
AUSTEN = TextRecord(
    name="austen",
    description="19th-century English prose (the six novels of Jane Austen)",
    sha256="4f" * 32,
    size_bytes=143414,
    context=256,
    windows=2,
    tokens=9000,
    dropped_tokens=8488,
    complete=False,
)
MINE = TextRecord(
    name="mine.txt",
    description="",
    sha256="ab" * 32,
    size_bytes=1500,
    context=256,
    windows=1,
    tokens=300,
    dropped_tokens=44,
    complete=True,
)
ACCURACY = Accuracy(drop=DROP, texts=(AUSTEN, MINE))
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


def matrix(name, shape, *, sources=(), bits=8, size_bytes=None, note=""):
    """One weight matrix; its size is that of its bits, without scales, unless given."""
    return contract.QuantizedTensor(
        name=name,
        sources=tuple(sources),
        shape=shape,
        bits=bits,
        block_size=64 if bits <= 8 else 0,
        symmetric=False,
        size_bytes=shape[0] * shape[1] * bits // 8 if size_bytes is None else size_bytes,
        note=note,
    )


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
        generation_defaults={},
        graph=contract.GraphSpec(
            file="model.onnx", opset=21, domains=("",), minimum_onnxruntime="1.23"
        ),
        quantization=contract.QuantizationSpec(
            scheme="weight-only", bits=8, block_size=64, tensors=tuple(matrices)
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
