"""Write a bundle: graph, weights, tokenizer, and the manifest that describes them."""

import dataclasses
import hashlib
import shutil
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import onnx_ir as ir

from wiola_export.contract import INPUTS, LOGITS
from wiola_export.options import ExportOptions
from wiola_export.serialize import MODEL_FILE
from wiola_export.source import Model
from wiola_runtime.manifest import (
    FILE_NAME,
    FORMAT_VERSION,
    ChatSpec,
    DType,
    FileSpec,
    GraphSpec,
    Manifest,
    QuantizationSpec,
    QuantizedTensor,
    SourceSpec,
    StateSpec,
    TensorSpec,
    TokenSpec,
)
from wiola_runtime.verify import TOKENIZER_FILE

# Oldest ONNX Runtime that was seen to load the graphs and pass their self-tests; the kernels for
# 8-bit blocks and for 8-bit caches came later (docs/decisions/0002-oldest-onnxruntime.md).
OLDEST_ONNXRUNTIME, OLDEST_WITH_BLOCKS, OLDEST_WITH_INT8_CACHE = "1.20.1", "1.23.2", "1.27.0"
BLOCK_KERNELS = {"MatMulNBits", "GatherBlockQuantized"}
PRODUCERS = ("wiola-export", "torch", "onnx", "onnx-ir", "onnxscript")
DTYPES: dict[ir.DataType | None, DType] = {
    ir.DataType.INT64: "int64",
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.INT8: "int8",
}


def bundle_name(model: Model, options: ExportOptions) -> str:
    """Name a bundle after its source, precision and whatever is not the default."""
    quantization = options.quantization
    scheme = f"-{quantization.resolved_scheme}" if quantization.rounds_activations else ""
    blocks = f"-block-{quantization.block_size}" if quantization.block_size else ""
    suffix = "" if options.target == "cpu" else f"-{options.target}"
    suffix += "-int8-cache" if options.int8_cache else ""
    name = model.name.removeprefix("wiola-")
    return f"wiola-{name}-{quantization.precision}{scheme}{blocks}{suffix}"


def describe(
    model: Model, options: ExportOptions, graph: ir.Graph, stored: Sequence[QuantizedTensor]
) -> Manifest:
    """Build the manifest of a graph, without files and self-test."""
    states = _states(model, graph)
    inputs = tuple(_state_input(state) for state in states)
    outputs = tuple(_state_output(state) for state in states)
    logits_axes = ("B", "R", model.config.vocab_size)
    logits = TensorSpec(name=LOGITS, dtype="float32", axes=logits_axes, role="logits")
    checkpoint = model.checkpoint
    return Manifest(
        format_version=FORMAT_VERSION,
        name=bundle_name(model, options),
        family=model.family.name,
        variant=model.variant,
        weights="random" if checkpoint is None else "trained",
        precision=options.quantization.precision,
        target=options.target,
        context_length=model.config.max_position_embeddings,
        vocab_size=model.config.vocab_size,
        cache="growing" if any("P" in state.axes for state in states) else "shared",
        inputs=(*INPUTS, *inputs),
        outputs=(logits, *outputs),
        states=states,
        tokens=token_spec(model),
        chat=chat_spec(model),
        generation_defaults=dict(model.tokenizer.generation_defaults),
        graph=_graph(graph),
        quantization=quantization_spec(options, stored),
        self_test=None,
        source=SourceSpec(
            checkpoint_sha256=None if checkpoint is None else checkpoint.sha256(),
            seed=model.seed,
        ),
        producer={name: metadata.version(name) for name in PRODUCERS},
        files={},
    )


def copy_tokenizer(model: Model, folder: Path) -> None:
    """Copy tokenizer.json as it is."""
    shutil.copyfile(model.tokenizer.path, folder / TOKENIZER_FILE)


def write_manifest(manifest: Manifest, folder: Path) -> Manifest:
    """Hash the files that the manifest does not list yet, write it, and return it.

    A file is never changed once it is listed, so that gigabytes of weights are hashed once.
    """
    names = sorted(p.name for p in folder.iterdir() if p.name != FILE_NAME)
    files = {name: manifest.files.get(name) or _file(folder / name) for name in names}
    whole = dataclasses.replace(manifest, files=files)
    (folder / FILE_NAME).write_text(whole.to_json(), encoding="utf-8", newline="\n")
    return whole


def _graph(graph: ir.Graph) -> GraphSpec:
    return GraphSpec(
        file=MODEL_FILE,
        opset=graph.opset_imports[""],
        domains=tuple(sorted(domain for domain in graph.opset_imports if domain)),
        minimum_onnxruntime=_oldest_onnxruntime(graph),
    )


def _oldest_onnxruntime(graph: ir.Graph) -> str:
    if any(value.dtype == ir.DataType.INT8 for value in graph.inputs):
        return OLDEST_WITH_INT8_CACHE
    blocks = any(node.op_type in BLOCK_KERNELS for node in graph)
    return OLDEST_WITH_BLOCKS if blocks else OLDEST_ONNXRUNTIME


def quantization_spec(
    options: ExportOptions, stored: Sequence[QuantizedTensor]
) -> QuantizationSpec:
    """Say how the weights of an export came to be what they are."""
    scheme = options.quantization.resolved_scheme
    return QuantizationSpec(
        scheme=scheme,
        bits=options.quantization.bits,
        block_size=options.quantization.resolved_block_size,
        method=options.method if scheme == "weight-only" else None,
        smoothing=options.smoothing,
        calibrator=options.calibrator,
        tensors=tuple(stored),
    )


def _states(model: Model, graph: ir.Graph) -> tuple[StateSpec, ...]:
    """Take element types and axes of the state from the graph, names and kinds from the model."""
    inputs = {value.name: value for value in graph.inputs}
    states = []
    for state in model.config.states():
        value = inputs[state.past]
        assert value.shape is not None
        axes = tuple(axis if isinstance(axis, int) else str(axis) for axis in value.shape)
        states.append(dataclasses.replace(state, dtype=DTYPES[value.dtype], axes=axes))
    return tuple(states)


def _state_input(state: StateSpec) -> TensorSpec:
    return TensorSpec(name=state.past, dtype=state.dtype, axes=state.axes, role="state")


def _state_output(state: StateSpec) -> TensorSpec:
    axes = tuple("S" if axis == "P" else axis for axis in state.axes)
    return TensorSpec(name=state.present, dtype=state.dtype, axes=axes, role="state")


def token_spec(model: Model) -> TokenSpec:
    """Say where a text and a reply begin and end."""
    files = model.tokenizer
    return TokenSpec(
        bos_id=files.bos_id,
        adds_bos=files.adds_bos,
        eos_ids=files.eos_ids(model.family.turn_end),
        pad_id=files.pad_id,
    )


def _file(path: Path) -> FileSpec:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return FileSpec(size_bytes=path.stat().st_size, sha256=sha256)


def chat_spec(model: Model) -> ChatSpec | None:
    """Say how conversations are written: by template, or as the family documents it.

    None where the template cannot be used, for the documented format would be another; and where
    there is no template and the tokenizer lacks the tokens of the documented format.
    """
    files, family = model.tokenizer, model.family
    if files.chat_doubt is not None:
        return None
    if files.chat_template is not None:
        return ChatSpec(template=files.chat_template, roles={}, turn_end=None)
    roles = {
        role: token
        for role, token in family.chat_roles.items()
        if files.token_id(token) is not None
    }
    ends = family.turn_end is not None and files.token_id(family.turn_end) is not None
    if not ends or not {"user", "assistant"} <= roles.keys():
        return None
    return ChatSpec(template=None, roles=roles, turn_end=family.turn_end)
