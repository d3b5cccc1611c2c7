"""The bundle's manifest: the one contract between exporter and runtime.

A host needs nothing else to drive a bundle of any model family: `inputs` and `outputs` say what
the graph takes and gives, `states` says which output is fed back into which input, and `tokens`
says where a reply starts and ends.

Axes: B batch row, T new positions of this call, R positions that return logits,
C cache capacity (at least the tokens cached plus T), P tokens already cached, S = P + T.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self, cast

from wiola_runtime.decode import decode
from wiola_runtime.errors import BundleError

FORMAT_VERSION = 1
FILE_NAME = "manifest.json"

Precision = Literal["fp32", "fp16", "int8", "int4"]
Target = Literal["cpu", "cuda", "portable"]
Weights = Literal["trained", "random"]
DType = Literal["int64", "float32", "float16", "int8"]
Role = Literal["token_ids", "past_lengths", "output_positions", "logits", "state"]
StateKind = Literal["cache", "sum"]
CacheLayout = Literal["shared", "growing"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One graph input or output: its name, element type, axes and what it is for."""

    name: str
    dtype: DType
    axes: tuple[str | int, ...]
    role: Role


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """One piece of state: output `present` of a call is input `past` of the next one.

    Attributes:
        kind: `cache` grows by T entries along its token axis in every call, `sum` keeps its
            shape and starts as zeros.
        axes: Axes of the input. A `cache` names its token axis "C" (shared) or "P" (growing).
    """

    past: str
    present: str
    kind: StateKind
    dtype: DType
    axes: tuple[str | int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpec:
    """Special tokens of the model.

    Attributes:
        bos_id: Token that starts a document, where the model has one.
        adds_bos: Whether `tokenizer.json` already puts it in front of every text.
        eos_ids: Every token that ends a reply: config, generation config, tokenizer, turn end. The
            first is the tokenizer's own, which a template knows as `eos_token`.
        pad_id: Never fed to the graph; kept for hosts that batch.
    """

    bos_id: int | None
    adds_bos: bool
    eos_ids: tuple[int, ...]
    pad_id: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChatSpec:
    """How messages are written for a model that was trained on conversations.

    Attributes:
        template: Jinja source of the checkpoint's template; None where the format is the documented
            one: token of the role, content, `turn_end`, a space between each.
        roles: Token that begins a turn, by role; empty with a template.
        turn_end: Token that ends a turn; None with a template.
    """

    template: str | None
    roles: Mapping[str, str]
    turn_end: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GraphSpec:
    """The graph file and what a host needs to open it."""

    file: str
    opset: int
    domains: tuple[str, ...]
    minimum_onnxruntime: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedTensor:
    """How one weight of the graph is stored.

    Attributes:
        name: Operand in the graph.
        sources: Checkpoint tensors that it was made from.
        shape: Output and input features (N, K) of the matrix.
        bits: 4 or 8, or 16 or 32 for a weight that is kept in floating point.
        block_size: Weights that share one scale; 0 where one scale serves a whole row.
        symmetric: Whether the zero point is the middle of the range.
        size_bytes: Bytes in the file, scales and zero points included; 0 where they are shared.
        note: Why the weight is kept in floating point, or with whom it shares its bytes.
    """

    name: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    bits: int
    block_size: int
    symmetric: bool
    size_bytes: int
    note: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationSpec:
    """The scheme of the export and what became of every weight matrix.

    Attributes:
        scheme: `float`, `weight-only`, `dynamic` or `static`.
        bits: Of most matrices.
        block_size: Of most matrices; 0 where one scale serves a whole row.
        method: How blocks of weights were rounded; None where there are none.
        smoothing: How strongly activations were smoothed into weights; None: not at all.
        calibrator: How ranges of activations were found; None where there are none.
    """

    scheme: str
    bits: int
    block_size: int
    method: str | None
    smoothing: float | None
    calibrator: str | None
    tensors: tuple[QuantizedTensor, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GoldenLogits:
    """The highest logits after the token at `position`, highest first."""

    position: int
    token_ids: tuple[int, ...]
    values: tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """What a target machine must reproduce.

    Attributes:
        prompt_ids: The prompt.
        token_ids: Its greedy continuation.
        logits: Logits at some positions of prompt and continuation.
        tolerance: Largest allowed |difference| of a logit. Where the two best logits are closer
            than twice this, either token is right.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logits: tuple[GoldenLogits, ...]
    tolerance: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """Where the weights came from: a checkpoint's SHA-256, or the seed of random weights."""

    checkpoint_sha256: str | None
    seed: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileSpec:
    """Size and SHA-256 of one file of the bundle."""

    size_bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that a runtime must know before it opens the graph.

    Attributes:
        format_version: Raised whenever an old runtime could no longer read the bundle.
        name: Suggested display name, e.g. `wiola-demo-int8`.
        family: Architecture family; informative, a runtime must not depend on it.
        variant: Published size, where the checkpoint is one.
        weights: `random` means that the bundle measures size and speed and says nothing.
        cache: `shared` binds past and present to one buffer of capacity C; `growing` returns a
            larger tensor at each call, all rows having one length.
        chat: How conversations are written; None where the model knows none.
        generation_defaults: Numbers from the checkpoint's generation_config.
        files: Every other file of the bundle by its bare name.
        producer: Package versions that wrote the bundle.
    """

    format_version: int
    name: str
    family: str
    variant: str | None
    weights: Weights
    precision: Precision
    target: Target
    context_length: int
    vocab_size: int
    cache: CacheLayout
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    states: tuple[StateSpec, ...]
    tokens: TokenSpec
    chat: ChatSpec | None
    generation_defaults: Mapping[str, float]
    graph: GraphSpec
    quantization: QuantizationSpec
    self_test: SelfTest | None
    source: SourceSpec
    producer: Mapping[str, str]
    files: Mapping[str, FileSpec]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Load `manifest.json` from a bundle folder.

        Raises:
            BundleError: The file is absent, no JSON, too new, or has other fields.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            raise BundleError(f"{path} not found; is {folder} an exported bundle?")
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            json.dumps(raw, ensure_ascii=False).encode()  # texts that nobody could print
        except (ValueError, RecursionError) as error:
            raise BundleError(f"{path} is not readable JSON ({error}); export again") from error
        if not isinstance(raw, dict) or not isinstance(raw.get("format_version"), int):
            raise BundleError(f"{path} has no format_version; is {folder} an exported bundle?")
        if raw["format_version"] > FORMAT_VERSION:
            raise BundleError(
                f"bundle format {raw['format_version']} is newer than this runtime reads "
                f"(<= {FORMAT_VERSION}); upgrade wiola-runtime"
            )
        return cast("Self", decode(cls, raw, str(path)))

    @property
    def fingerprint(self) -> str:
        """A SHA-256 of what decides on replies: graph, weights, tokenizer and contract."""
        kinds = (self.graph.file, "tokenizer")
        files = {n: spec.sha256 for n, spec in self.files.items() if n.startswith(kinds)}
        states = [dataclasses.asdict(state) for state in self.states]
        content = json.dumps([states, dataclasses.asdict(self.tokens), files], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def to_json(self) -> str:
        """Write the manifest; the same manifest gives the same bytes."""
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"

    def name_of(self, role: Role) -> str:
        """Return the name of the one input or output of a role.

        Raises:
            BundleError: The graph has none.
        """
        for spec in (*self.inputs, *self.outputs):
            if spec.role == role:
                return spec.name
        raise BundleError(f"the manifest lists no tensor with role {role!r}; export again")
