"""What packages and descriptions compute, and our model, graph and bundle of the same weights.

Everything here is made once and shared; a graph is handed out as a copy, since passes work in
place.

Axes: B batch, T positions, V vocabulary, d hidden size.
"""

import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import onnx_ir as ir
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from support import moment_cases
from support.tiny_bundle import tokenizer_json

from wiola_export import bundle, pipeline, prepare
from wiola_export.families import FAMILIES, Family, detect
from wiola_export.lower import lower
from wiola_export.options import ExportOptions, Quantization, Source
from wiola_export.progress import Silent
from wiola_export.serialize import write_model
from wiola_export.source import demo_folder, find_model
from wiola_export.trace import trace
from wiola_export.weights import StoredWeight, bind

FOLDER = Path(__file__).parents[1] / "oracles"
FILES = {p.stem.partition("-")[2]: p for p in sorted(FOLDER.glob("*.safetensors"))}
NAMES = (*FILES, *moment_cases.CONFIGS)
PROMPT_TOKENS = 9
PREFIX = "weights."
SUMS = ("running_sum.", "gate_sum.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One recorded checkpoint: (B, T) ids, (B, T, V) logits, sums (B, …) by their output."""

    name: str
    json_config: dict
    weights: dict[str, np.ndarray]
    input_ids: np.ndarray
    logits: np.ndarray
    greedy_ids: np.ndarray
    running_sums: dict[str, np.ndarray]

    @property
    def family(self) -> Family:
        return detect(self.json_config)

    @property
    def config(self):
        return self.family.parse_config(self.json_config)


class MemorySource:
    """Weights that are in memory already."""

    def __init__(self, tensors: dict[str, np.ndarray]) -> None:
        self.tensors = tensors

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        tensor = self.tensors[name]
        return tensor[start:stop] if tensor.ndim else tensor


@functools.cache
def load(name: str) -> Case:
    """Read or compute a case; the sums are named as the graph names them."""
    if name in moment_cases.CONFIGS:
        return _computed(name)
    with safe_open(FILES[name], "numpy") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  no mapping
        config = json.loads(file.metadata()["config"])
    sums = {k.partition(".")[2]: v for k, v in tensors.items() if k.startswith(SUMS)}
    return Case(
        name=name,
        json_config=config,
        weights={k.removeprefix(PREFIX): v for k, v in tensors.items() if k.startswith(PREFIX)},
        input_ids=tensors["input_ids"],
        logits=tensors["logits"],
        greedy_ids=tensors["greedy_ids"][0],
        running_sums={f"present_summary.{layer}": v for layer, v in sums.items()},
    )


def _computed(name: str) -> Case:
    return Case(
        name=name,
        json_config=dict(moment_cases.CONFIGS[name].to_json()),
        weights=moment_cases.weights(name),
        input_ids=moment_cases.input_ids(name),
        logits=moment_cases.logits(name),
        greedy_ids=moment_cases.greedy_ids(name),
        running_sums={},
    )


def names_of(family: str) -> tuple[str, ...]:
    """Return the cases of one family."""
    return tuple(name for name in NAMES if load(name).family.name == family)


def torch_model(case: Case):
    """Build the module and fill it with the recorded weights, strictly."""
    model = case.family.build_model(case.config).eval()
    model.load_state_dict({k: torch.from_numpy(v) for k, v in case.weights.items()})
    return model


@functools.cache
def _traced(family_name: str, config):
    return trace(next(f for f in FAMILIES if f.name == family_name), config)


def shared_trace(family: Family, config):
    """Trace as the exporter does, a shape once; a copy costs a hundredth of it."""
    copy = _traced(family.name, config).clone()
    for value in (*copy.graph.inputs, *copy.graph.initializers.values(), *results(copy)):
        # A clone shares the types, which passes change in place.
        value.type = None if value.type is None else ir.TensorType(value.type.dtype)
    return copy


def results(model: ir.Model) -> Iterator[ir.Value]:
    """Yield what every node of the main graph gives."""
    return (output for node in model.graph for output in node.outputs)


def semantic(case: Case, weights: dict[str, np.ndarray] | None = None, config=None):
    """Return a new semantic graph with weights, the recorded ones unless others are given."""
    model = shared_trace(case.family, case.config)
    names = list(model.graph.initializers)
    orders = {name: (config or case.config).reordered(name) for name in names}
    source = MemorySource(weights or case.weights)
    return bind(model, lambda name, shape: StoredWeight(source, name, shape, orders[name]))


def lowered(case: Case, target: str, quantization: Quantization, weights=None):
    """Return the lowered graph of a case, and how its weights are stored."""
    policy = prepare.make_policy(quantization, target)
    context = case.config.max_position_embeddings
    return lower(semantic(case, weights), target, policy, context_length=context)


def write_checkpoint(case: Case, folder: Path, weights=None) -> Path:
    """Write a case as a folder in the Hugging Face layout, with a small tokenizer."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(case.json_config), "utf-8")
    (folder / "tokenizer.json").write_text(tokenizer_json(), "utf-8")
    tokens = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens), "utf-8")
    save_file(dict(weights or case.weights), folder / "model.safetensors")
    return folder


def write_bundle(
    checkpoint: Path, folder: Path, target: str, quantization: Quantization, policy=None
) -> Path:
    """Export a folder by the pipeline's own pieces, without calibration, self-test and report."""
    prepared = None if policy is None else prepare.Prepared(policy=policy)
    source = Source(checkpoint=checkpoint)
    options = ExportOptions(source=source, quantization=quantization, target=target)
    model = find_model(source)
    with mock.patch("wiola_export.trace.trace", shared_trace):
        graph, stored = pipeline.build_graph(model, options, Silent(), prepared)
    folder.mkdir()
    write_model(graph, folder, Silent())
    bundle.copy_tokenizer(model, folder)
    bundle.write_manifest(bundle.describe(model, options, graph.graph, stored), folder)
    return folder


def demo_bundle(folder: Path, quantization: Quantization, policy=None) -> Path:
    """Export the packaged checkpoint for the CPU, as a policy says or else as is usual."""
    return write_bundle(demo_folder(), folder, "cpu", quantization, policy)
