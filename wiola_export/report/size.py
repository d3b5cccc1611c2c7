"""Where the bytes of a bundle are: by file and by part of the model."""

import dataclasses
import math
from collections.abc import Iterable, Mapping

import numpy as np

from wiola_runtime.manifest import Manifest, QuantizedTensor, StateSpec

# Files about the bundle, not of it: they are written after the figures are known.
DOCUMENTS = frozenset(
    {"README.md", "report.json", "report.md", "report.html", "manifest.json", "plan.json"}
)
FLOAT_BITS = 16
_TEXT_SUFFIXES = (".json", ".jinja", ".txt", ".md")
# A matrix is known by the words of its name in the checkpoint, whatever the family.
_PARTS = (
    ("attention", ("attn", "attention")),
    ("feed-forward", ("ffn", "mlp", "feed_forward")),
    ("embedding and head", ("embed", "head", "wte")),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes on disk, documents left out.

    Attributes:
        by_file: Bytes of `graph`, `weights`, `tokenizer` and `other`; together `total_bytes`.
        by_part: Bytes of the weight matrices by part of the model; the rest of the weights
            (vectors, scalars, alignment) is the last entry.
        matrices_fp16_bytes: What the same matrices take in float16.
        bits_per_weight: Of the matrices, scales and zero points included; None without any.
        cache_bytes_per_token: Of the keys and values of all layers.
    """

    total_bytes: int
    by_file: Mapping[str, int]
    by_part: Mapping[str, int]
    matrices_bytes: int
    matrices_fp16_bytes: int
    bits_per_weight: float | None
    cache_bytes_per_token: int


def measure_sizes(manifest: Manifest) -> Sizes:
    """Add up the files and the matrices that a manifest lists."""
    by_file = dict.fromkeys(("graph", "weights", "tokenizer", "other"), 0)
    for name, file in manifest.files.items():
        if name not in DOCUMENTS:
            by_file[_kind(name, manifest.graph.file)] += file.size_bytes
    stored = [tensor for tensor in manifest.quantization.tensors if tensor.size_bytes]
    matrices_bytes = sum(tensor.size_bytes for tensor in stored)
    weights = sum(math.prod(tensor.shape) for tensor in stored)
    return Sizes(
        total_bytes=sum(by_file.values()),
        by_file=by_file,
        by_part=_by_part(stored, by_file["weights"] - matrices_bytes),
        matrices_bytes=matrices_bytes,
        matrices_fp16_bytes=weights * FLOAT_BITS // 8,
        bits_per_weight=matrices_bytes * 8 / weights if weights else None,
        cache_bytes_per_token=sum(map(_bytes_per_token, manifest.states)),
    )


def _bytes_per_token(state: StateSpec) -> int:
    """Return what a token adds to a state: fixed axes times the size of an element."""
    if state.kind != "cache":
        return 0
    sizes = [axis for axis in state.axes if isinstance(axis, int)]
    return math.prod(sizes) * np.dtype(state.dtype).itemsize


def part_of(tensor: QuantizedTensor) -> str:
    """Name the part of the model that a matrix belongs to.

    Known words decide; otherwise it is the module's name, layer numbers left out.
    """
    source = tensor.sources[0] if tensor.sources else tensor.name
    for part, words in _PARTS:
        if any(word in source.lower() for word in words):
            return part
    modules = [word for word in source.split(".") if not word.isdigit()]
    return next(word for word in reversed(modules) if word not in ("weight", "bias"))


def _kind(name: str, graph_file: str) -> str:
    if name == graph_file:
        return "graph"
    if "token" in name:
        return "tokenizer"
    return "other" if name.endswith(_TEXT_SUFFIXES) else "weights"


def _by_part(stored: Iterable[QuantizedTensor], rest: int) -> dict[str, int]:
    parts: dict[str, int] = {}
    for tensor in stored:
        part = part_of(tensor)
        parts[part] = parts.get(part, 0) + tensor.size_bytes
    # Small weights may lie inside the graph file; then there is no rest to show.
    if rest > 0:
        parts["vectors and alignment"] = rest
    return parts
