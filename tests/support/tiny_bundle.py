"""A whole bundle of a few kilobytes: every kind of state, a tokenizer, and a numpy oracle.

Its logits depend on every cached key and value, on the running sum and on the positions, so a
runtime that loses or misplaces any of them computes something else.

Axes: B row, T new positions, R returned positions, P cached, S = P + T, C capacity,
V vocabulary.
"""

import dataclasses
import functools
import hashlib
import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from wiola_runtime import manifest as contract

HEADS, HEAD_SIZE = 2, 16
HIDDEN = HEADS * HEAD_SIZE
CORPUS = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune",
    "must be in want of a wife. 日本語のテキスト 😀 👨‍👩‍👧 é naïve",
)

HEADER = """
<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
tiny (int64[B, T] tokens, int64[B] lengths, int64[R] wanted,
      {cache}[B, 1, {token_axis}, 16] key_in, {cache}[B, 1, {token_axis}, 16] value_in,
      float[B, 32] sum_in, float[N, 32] embedding, float[M, 32] places, float[32, 32] w_q,
      float[32, 16] w_k, float[32, 16] w_v, float[32, {vocab_size}] head)
  => (float[B, R, {vocab_size}] scores, {cache}[B, 1, {present_axis}, 16] key_out,
      {cache}[B, 1, {present_axis}, 16] value_out, float[B, 32] sum_out)
<int64 zero = {{0}}, int64 one = {{1}}, int64[1] axis_1 = {{1}}, int64[1] axis_2 = {{2}},
 int64[1] axes_last = {{-1}}, float quarter = {{0.25}}, float far = {{-1e9}},
 int64[4] heads_shape = {{0, 0, 2, 16}}, int64[4] one_head_shape = {{0, 0, 1, 16}},
 int64[3] flat_shape = {{0, 0, 32}}>
{{
  shape = Shape (tokens)
  new = Gather <axis = 0> (shape, one)
  steps = Range (zero, new, one)
  rows = Unsqueeze (lengths, axis_1)
  positions = Add (rows, steps)
  token_part = Gather (embedding, tokens)
  place_part = Gather (places, positions)
  x = Add (token_part, place_part)
  q = MatMul (x, w_q)
  k = MatMul (x, w_k)
  v = MatMul (x, w_v)
"""
SHARED = """
  total = Add (lengths, new)
  last = Sub (total, one)
  last_32 = Cast <to = 6> (last)
  longest = ReduceMax <keepdims = 0> (total)
  longest_32 = Cast <to = 6> (longest)
  q_c = Cast <to = {onnx_type}> (q)
  k_c = Cast <to = {onnx_type}> (k)
  v_c = Cast <to = {onnx_type}> (v)
  mixed_c, key_out, value_out = com.microsoft.GroupQueryAttention
      <num_heads = 2, kv_num_heads = 1> (q_c, k_c, v_c, key_in, value_in, last_32, longest_32)
  mixed = Cast <to = 1> (mixed_c)
"""
GROWING = """
  q_heads = Reshape (q, heads_shape)
  k_heads = Reshape (k, one_head_shape)
  v_heads = Reshape (v, one_head_shape)
  q_t = Transpose <perm = [0, 2, 1, 3]> (q_heads)
  k_t = Transpose <perm = [0, 2, 1, 3]> (k_heads)
  v_t = Transpose <perm = [0, 2, 1, 3]> (v_heads)
  key_out = Concat <axis = 2> (key_in, k_t)
  value_out = Concat <axis = 2> (value_in, v_t)
  key_columns = Transpose <perm = [0, 1, 3, 2]> (key_out)
  products = MatMul (q_t, key_columns)
  scaled = Mul (products, quarter)
  all_shape = Shape (key_out)
  two = Add (one, one)
  all = Gather <axis = 0> (all_shape, two)
  all_steps = Range (zero, all, one)
  query_places = Unsqueeze (positions, axes_last)
  visible = LessOrEqual (all_steps, query_places)
  visible_heads = Unsqueeze (visible, axis_1)
  masked = Where (visible_heads, scaled, far)
  weights = Softmax <axis = -1> (masked)
  mixed_t = MatMul (weights, value_out)
  mixed_heads = Transpose <perm = [0, 2, 1, 3]> (mixed_t)
  mixed = Reshape (mixed_heads, flat_shape)
"""
FOOTER = """
  sums_here = CumSum (x, one)
  sum_before = Unsqueeze (sum_in, axis_1)
  sums = Add (sums_here, sum_before)
  last_step = Sub (new, one)
  sum_out = Gather <axis = 1> (sums, last_step)
  counts = Add (positions, one)
  counts_f = Cast <to = 1> (counts)
  counts_column = Unsqueeze (counts_f, axes_last)
  means = Div (sums, counts_column)
  attended = Add (x, mixed)
  y = Add (attended, means)
  y_wanted = Gather <axis = 1> (y, wanted)
  scores = MatMul (y_wanted, head)
}
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TinyBundle:
    """What to build; `cache` and `cache_dtype` are the layouts that real exports have."""

    cache: contract.CacheLayout = "shared"
    cache_dtype: contract.DType = "float32"
    target: contract.Target = "cpu"
    context_length: int = 600
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = 1
    weights: contract.Weights = "trained"
    chat: contract.ChatSpec | None = None

    def write(self, folder: Path) -> Path:
        """Write the bundle into a new folder."""
        folder.mkdir(parents=True)
        ir.save(self._graph(), folder / "model.onnx", external_data="model.onnx.data")
        (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
        self.write_manifest(folder)
        return folder

    def write_manifest(self, folder: Path) -> None:
        """Describe the files as they are."""
        files = {
            path.name: contract.FileSpec(
                size_bytes=path.stat().st_size,
                sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            )
            for path in sorted(folder.iterdir())
            if path.name != contract.FILE_NAME
        }
        text = self.manifest(files).to_json()
        (folder / contract.FILE_NAME).write_text(text, encoding="utf-8")

    def weight_arrays(self) -> dict[str, np.ndarray]:
        """Return the weights: seeded, and large enough that every part moves the logits."""
        rng = np.random.default_rng(5)
        shapes = {
            "embedding": (vocab_size(), HIDDEN),
            "places": (self.context_length, HIDDEN),
            "w_q": (HIDDEN, HIDDEN),
            "w_k": (HIDDEN, HEAD_SIZE),
            "w_v": (HIDDEN, HEAD_SIZE),
            "head": (HIDDEN, vocab_size()),
        }
        return {
            name: (rng.standard_normal(shape) * 0.4).astype(np.float32)
            for name, shape in shapes.items()
        }

    def oracle(self, token_ids) -> np.ndarray:
        """Return the logits (T, V) of one text as the formulas say, in float64."""
        w = {name: array.astype(np.float64) for name, array in self.weight_arrays().items()}
        ids = np.asarray(token_ids)
        x = w["embedding"][ids] + w["places"][: ids.size]
        q = (x @ w["w_q"]).reshape(-1, HEADS, HEAD_SIZE)
        scores = np.einsum("thd,sd->hts", q, x @ w["w_k"]) / np.sqrt(HEAD_SIZE)
        scores[:, np.triu(np.ones((ids.size, ids.size), bool), 1)] = -np.inf
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        mixed = np.einsum("hts,sd->thd", chances, x @ w["w_v"]).reshape(-1, HIDDEN)
        means = np.cumsum(x, 0) / np.arange(1, ids.size + 1)[:, None]
        return (x + mixed + means) @ w["head"]

    def _graph(self) -> ir.Model:
        shared = self.cache == "shared"
        text = (HEADER + (SHARED if shared else GROWING)).format(
            cache={"float32": "float", "float16": "float16"}[self.cache_dtype],
            onnx_type={"float32": 1, "float16": 10}[self.cache_dtype],
            token_axis="C" if shared else "P",
            present_axis="C" if shared else "S",
            vocab_size=vocab_size(),
        )
        weights = [ir.tensor(a, name=name) for name, a in self.weight_arrays().items()]
        model = ir.from_onnx_text(text + FOOTER, initializers=weights)
        # The text format wants a declaration of every weight, and inputs are its only one.
        del model.graph.inputs[-len(weights) :]
        return model

    def manifest(self, files) -> contract.Manifest:
        """Describe the graph."""
        token_axis = "C" if self.cache == "shared" else "P"
        caches = [
            contract.StateSpec(
                past=f"{what}_in",
                present=f"{what}_out",
                kind="cache",
                dtype=self.cache_dtype,
                axes=("B", 1, token_axis, HEAD_SIZE),
            )
            for what in ("key", "value")
        ]
        total = contract.StateSpec(
            past="sum_in", present="sum_out", kind="sum", dtype="float32", axes=("B", HIDDEN)
        )
        states = (*caches, total)
        return contract.Manifest(
            format_version=contract.FORMAT_VERSION,
            name="tiny",
            family="tiny",
            variant=None,
            weights=self.weights,
            precision="fp32",
            target=self.target,
            context_length=self.context_length,
            vocab_size=vocab_size(),
            cache=self.cache,
            inputs=(
                _tensor("tokens", "int64", ("B", "T"), "token_ids"),
                _tensor("lengths", "int64", ("B",), "past_lengths"),
                _tensor("wanted", "int64", ("R",), "output_positions"),
                *(_tensor(s.past, s.dtype, s.axes, "state") for s in states),
            ),
            outputs=(
                _tensor("scores", "float32", ("B", "R", vocab_size()), "logits"),
                *(_tensor(s.present, s.dtype, s.axes, "state") for s in states),
            ),
            states=states,
            tokens=contract.TokenSpec(
                bos_id=self.bos_id, adds_bos=False, eos_ids=self.eos_ids, pad_id=0
            ),
            chat=self.chat,
            generation_defaults={},
            graph=contract.GraphSpec(
                file="model.onnx",
                opset=21,
                domains=("", "com.microsoft"),
                minimum_onnxruntime="1.20",
            ),
            quantization=contract.QuantizationSpec(
                scheme="none",
                bits=32,
                block_size=0,
                method=None,
                smoothing=None,
                calibrator=None,
                tensors=(),
            ),
            self_test=None,
            source=contract.SourceSpec(checkpoint_sha256=None, seed=5),
            producer={},
            files=files,
        )


def _tensor(name, dtype, axes, role) -> contract.TensorSpec:
    return contract.TensorSpec(name=name, dtype=dtype, axes=axes, role=role)


@functools.cache
def tokenizer_json() -> str:
    """Train a byte-level tokenizer; its few merges leave most characters in several tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<bos>", "<eos>", "<unk>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str()


@functools.cache
def vocab_size() -> int:
    """Size of the tokenizer's and so of the model's vocabulary."""
    return len(json.loads(tokenizer_json())["model"]["vocab"])
