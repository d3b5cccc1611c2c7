"""Each model from its published package to the shipped runtime, rung by rung.

package = torch module = semantic ONNX = lowered ONNX = runtime, each rung against the record of
the package itself, so that errors cannot hide behind each other.
"""

import functools
import itertools

import numpy as np
import pytest
import torch
from support import oracles
from support.graphs import GraphRunner, distance

import wiola_runtime as wr
from wiola_export.families.layerwise import LayerwiseExecutor
from wiola_export.options import Quantization
from wiola_runtime.graph import Graph
from wiola_runtime.opening import GraphOptions
from wiola_runtime.row import Row
from wiola_runtime.scoring import score

# Largest |Δlogit| allowed on each rung, at |logit| up to 21; the target's precision beside it.
TOLERANCES = {"torch": 1e-4, "semantic": 1e-4, "cpu": 1e-3, "portable": 1e-3, "cuda": 0.1}
# Largest |Δ| of a running sum, over its largest value.
SUM_TOLERANCES = {"torch": 1e-6, "semantic": 1e-6, "cpu": 1e-5, "portable": 1e-5, "cuda": 3e-3}
PRECISIONS = {"cpu": "fp32", "portable": "fp32", "cuda": "fp16"}
NEW_TOKENS = 24
# Between numbers from 8 to 16, as the best logits are: two closer than that may change places.
FLOAT16_STEP = 2**-7

every_case = pytest.mark.parametrize("name", oracles.NAMES)
every_target = pytest.mark.parametrize("target", PRECISIONS)


@functools.cache
def lowered_runner(name, target):
    graph, _ = oracles.lowered(
        oracles.load(name), target, Quantization(precision=PRECISIONS[target])
    )
    return GraphRunner(graph)


@functools.cache
def semantic_runner(name):
    return GraphRunner(oracles.semantic(oracles.load(name)))


@pytest.fixture(scope="session")
def opened(tmp_path_factory):
    """Give the graph and the model of a case's bundle, exported at its first use."""
    root = tmp_path_factory.mktemp("ladder")

    @functools.cache
    def folder(name):
        return oracles.write_checkpoint(oracles.load(name), root / name)

    @functools.cache
    def bundle(name, target):
        quantization = Quantization(precision=PRECISIONS[target])
        out = root / f"{name}-{target}"
        oracles.write_bundle(folder(name), out, target, quantization)
        model = wr.load(out, threads=1)
        return Graph(out, model.manifest, GraphOptions(threads=1)), model

    return bundle


def sum_distance(found, case):
    """Return the worst relative distance of the sums that a step hands on, if there are any."""
    gaps = (
        distance(found[name], total) / np.abs(total).max()
        for name, total in case.running_sums.items()
        if name in found
    )
    return max(gaps, default=0.0)


def torch_step(model, config, ids, done, states):
    with torch.no_grad():
        lengths = torch.full((len(ids),), done)
        everything = torch.arange(ids.shape[1])
        logits, *states = model(torch.from_numpy(ids), lengths, everything, states)
    names = [state.present for state in config.states()]
    return logits.numpy(), states, {n: s.numpy() for n, s in zip(names, states, strict=True)}


def empty_states(config, batch):
    sizes = {"B": batch, "P": 0}
    return [torch.zeros([sizes.get(a, a) for a in s.axes]) for s in config.states()]


@every_case
def test_the_package_equals_the_torch_module(name):
    case = oracles.load(name)
    model, config = oracles.torch_model(case), case.config

    logits, _, found = torch_step(model, config, case.input_ids, 0, empty_states(config, 2))

    assert distance(logits, case.logits) < TOLERANCES["torch"]
    assert sum_distance(found, case) < SUM_TOLERANCES["torch"]
    dropped = case.running_sums.keys() - found.keys()
    assert len(dropped) == (case.family.name == "gcla"), "its last layer's sum is never read"


@every_case
def test_the_torch_module_step_by_step(name):
    case = oracles.load(name)
    model, config = oracles.torch_model(case), case.config
    states, parts, found = empty_states(config, 2), [], {}

    for done in range(case.input_ids.shape[1]):
        ids = case.input_ids[:, done : done + 1]
        logits, states, found = torch_step(model, config, ids, done, states)
        parts.append(logits)

    assert distance(np.concatenate(parts, axis=1), case.logits) < TOLERANCES["torch"]
    assert sum_distance(found, case) < SUM_TOLERANCES["torch"]


@every_case
def test_the_torch_module_layer_by_layer(name):
    """The reference of a report holds one layer at a time."""
    case = oracles.load(name)
    with torch.device("meta"):
        skeleton = case.family.build_model(case.config).eval()

    blocks = LayerwiseExecutor(
        skeleton,
        lambda parameter: torch.from_numpy(case.weights[parameter]),
        lambda batch: empty_states(case.config, batch),
    ).logits(case.input_ids, batch=1)

    assert distance(np.concatenate(list(blocks)), case.logits) < TOLERANCES["torch"]


@every_case
def test_the_semantic_graph(name):
    case = oracles.load(name)

    logits, found = semantic_runner(name).all_at_once(case.input_ids)

    assert distance(logits, case.logits) < TOLERANCES["semantic"]
    assert sum_distance(found, case) < SUM_TOLERANCES["semantic"]


@every_case
def test_the_semantic_graph_step_by_step(name):
    case = oracles.load(name)

    logits, found = semantic_runner(name).in_chunks(case.input_ids, [1] * 48)

    assert distance(logits, case.logits) < TOLERANCES["semantic"]
    assert sum_distance(found, case) < SUM_TOLERANCES["semantic"]


@every_target
@every_case
def test_the_lowered_graph(name, target):
    case = oracles.load(name)

    logits, found = lowered_runner(name, target).all_at_once(case.input_ids)

    assert distance(logits, case.logits) < TOLERANCES[target]
    assert sum_distance(found, case) < SUM_TOLERANCES[target]


@every_target
@every_case
def test_the_lowered_graph_step_by_step(name, target):
    """Rows decode together; what is handed on is the state alone."""
    case = oracles.load(name)

    logits, found = lowered_runner(name, target).in_chunks(case.input_ids, [1] * 48)

    assert distance(logits, case.logits) < TOLERANCES[target]
    assert sum_distance(found, case) < SUM_TOLERANCES[target]


@every_target
@every_case
def test_the_runtime_scores_windows(opened, name, target):
    case = oracles.load(name)
    _, model = opened(name, target)

    assert distance(model.logits(case.input_ids), case.logits) < TOLERANCES[target]


@pytest.mark.parametrize("chunk", [1, 7, 32])
@every_target
@every_case
def test_the_runtime_in_chunks(opened, name, target, chunk):
    """Chunk 1 is one token at a time."""
    case = oracles.load(name)
    graph, model = opened(name, target)

    logits = score(graph, model.manifest, case.input_ids, chunk)

    assert distance(logits, case.logits) < TOLERANCES[target]


@every_target
@every_case
def test_the_runtime_steps_after_a_prompt(opened, name, target):
    """Prefill, then the reused bindings of decoding: another path than scoring."""
    case = oracles.load(name)
    graph, _ = opened(name, target)
    row, ids = Row(graph), case.input_ids[0]

    found = [row.step(ids[: oracles.PROMPT_TOKENS]).copy()]
    found += [row.step([token]).copy() for token in ids[oracles.PROMPT_TOKENS :]]

    expected = case.logits[0, oracles.PROMPT_TOKENS - 1 :]
    assert distance(found, expected) < TOLERANCES[target]


@every_target
@every_case
def test_the_runtime_writes_the_packages_greedy_text(opened, name, target):
    """In float16 another token may win a tie."""
    case = oracles.load(name)
    _, model = opened(name, target)
    prompt = case.greedy_ids[: oracles.PROMPT_TOKENS].tolist()

    reply = list(model.generate(prompt, max_new_tokens=NEW_TOKENS).token_ids)

    if reply != case.greedy_ids[oracles.PROMPT_TOKENS :].tolist():
        assert target == "cuda"
        assert regret(name, prompt, reply) < FLOAT16_STEP


def regret(name, prompt, reply):
    """Return how far the logits of a reply's tokens stay below the best, at most."""
    logits, _ = semantic_runner(name).all_at_once(np.asarray([prompt + reply]))
    steps = logits[0, len(prompt) - 1 : -1]
    return (steps.max(-1) - steps[range(len(reply)), reply]).max()


def test_the_cases_of_gcla_differ_in_shape():
    """Lookback 1 to 3, MHA, GQA, odd sizes, spiral, untied."""
    configs = [oracles.load(name).config for name in oracles.names_of("gcla")]

    assert {c.gcla_lookback for c in configs} == {1, 2, 3}
    assert {c.tie_word_embeddings for c in configs} == {True, False}
    groups = {c.num_attention_heads // c.num_key_value_heads for c in configs}
    assert groups == {1, 2, 3, 5}
    assert any(c.head_dim % 16 for c in configs)
    assert all(a != b for a, b in itertools.combinations(configs, 2))


def test_the_cases_of_gsa_differ_in_shape():
    """A gate before and after the rotation and none, a stronger spiral, odd sizes."""
    configs = [oracles.load(name).config for name in oracles.names_of("gsa")]

    gates = {(c.use_attention_gate, c.gate_pre_rope) for c in configs}
    assert gates == {(True, True), (True, False), (False, True)}
    assert {c.spiral_alpha for c in configs} == {0.05, 0.5}
    assert any(c.intermediate_size % 16 for c in configs)
    assert all(a != b for a, b in itertools.combinations(configs, 2))


def test_the_cases_of_moment_differ_in_shape():
    """One head and several, odd sizes, tied and untied, other constants."""
    configs = [oracles.load(name).config for name in oracles.names_of("moment")]

    assert {c.num_attention_heads for c in configs} == {1, 3, 4}
    assert {c.tie_word_embeddings for c in configs} == {True, False}
    assert len({c.variance_scale for c in configs}) == 2
    assert any(c.head_dim % 16 for c in configs)
    assert all(a != b for a, b in itertools.combinations(configs, 2))
