"""Ways to compute mean and variance under one attention, on the CPU: what decision 8 rests on.

    python tests/bench/moment_attention.py attention     # one layer's attention, four ways
    python tests/bench/moment_attention.py model FOLDER  # moment-27m with random weights, two ways

Times are of the thread's processor, medians of interleaved calls, so that a busy machine says the
same as an idle one.

Axes: B rows, T new positions, H heads, D head size, P cached positions, C cache capacity.
"""

import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import onnxruntime as ort
from onnx import parser

HEADS, SIZE = 8, 32
WIDTH = HEADS * SIZE
SHAPES = ((64, 1), (512, 1), (1024, 1), (0, 256), (768, 256))  # cached, new positions
HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>\n'
FLAT = f"float[B, T, {WIDTH}]"
CONSTANTS = f"""
    int64[4] heads = {{0, 0, {HEADS}, {SIZE}}},
    int64[4] wide_heads = {{0, 0, {HEADS}, {2 * SIZE}}},
    int64[3] flat = {{0, 0, -1}},
    int64[4] row = {{-1, 1, 1, 1}},
    int64[1] n0 = {{0}},
    int64[1] n1 = {{1}},
    int64[1] n2 = {{2}},
    int64[2] corner = {{0, 0}},
    int64[2] ends = {{1, {SIZE}}},
    int64[2] axes = {{2, 3}},
    int64[8] pads = {{0, 0, 0, 0, 0, 0, 0, {SIZE}}},
    float nothing = {{0.0}},
    float low = {{-65504.0}},
    float root = {{{SIZE**0.5}}},
    int64[0] none = {{}}
"""
LENGTHS = """
    new = Shape <start = 1, end = 2> (q)
    totals = Add (n, new)
    last = Sub (totals, n1)
    last32 = Cast <to = 6> (last)
    longest = ReduceMax <keepdims = 0> (totals)
    longest32 = Cast <to = 6> (longest)
    v4 = Reshape (v, heads)
"""
ORIGIN = """
    fresh0 = Equal (n, n0)
    fresh = Reshape (fresh0, row)
    now = Slice (v4, n0, n1, n1)
    before0 = Slice (pv, corner, ends, axes)
    before = Transpose <perm = [0, 2, 1, 3]> (before0)
    c = Where (fresh, now, before)
    w = Sub (v4, c)
    squares = Mul (w, w)
"""
VARIANCE = """
    m = Sub (mean4, c)
    mm = Mul (m, m)
    spread = Sub (second, mm)
    variance4 = Max (spread, nothing)
    mean = Reshape (mean4, flat)
    variance = Reshape (variance4, flat)
"""
KERNEL = f"com.microsoft.GroupQueryAttention <num_heads = {HEADS}, kv_num_heads = {HEADS}"
PLAIN = """
    q4 = Reshape (q, heads)
    k4 = Reshape (k, heads)
    v4 = Reshape (v, heads)
    qt = Transpose <perm = [0, 2, 1, 3]> (q4)
    kt = Transpose <perm = [0, 2, 1, 3]> (k4)
    vt = Transpose <perm = [0, 2, 1, 3]> (v4)
    nk = Concat <axis = 2> (pk, kt)
    nv = Concat <axis = 2> (pv, vt)
    columns = Transpose <perm = [0, 1, 3, 2]> (nk)
    products = MatMul (qt, columns)
    scores = Div (products, root)
    past = Shape <start = 2, end = 3> (pk)
    new = Shape <start = 1, end = 2> (q)
    total = Shape <start = 2, end = 3> (nk)
    shape = Concat <axis = 0> (new, total)
    ones = ConstantOfShape <value = float[1] {1.0}> (shape)
    shift = Reshape (past, none)
    seen = Trilu <upper = 0> (ones, shift)
    visible = Cast <to = 9> (seen)
    masked = Where (visible, scores, low)
    p = Softmax <axis = -1> (masked)
    c = Slice (nv, n0, n1, n2)
    w = Sub (nv, c)
    squares = Mul (w, w)
    m = MatMul (p, w)
    s = MatMul (p, squares)
    mm = Mul (m, m)
    spread = Sub (s, mm)
    variance_heads = Max (spread, nothing)
    mean_heads = Add (m, c)
    mean_rows = Transpose <perm = [0, 2, 1, 3]> (mean_heads)
    mean = Reshape (mean_rows, flat)
    variance_rows = Transpose <perm = [0, 2, 1, 3]> (variance_heads)
    variance = Reshape (variance_rows, flat)
"""
BESIDE = f"""{LENGTHS}{ORIGIN}
    both4 = Concat <axis = -1> (v4, squares)
    both = Reshape (both4, flat)
    q4 = Reshape (q, heads)
    qp = Pad (q4, pads)
    qw = Reshape (qp, flat)
    k4 = Reshape (k, heads)
    kp = Pad (k4, pads)
    kw = Reshape (kp, flat)
    y, nk, nv = {KERNEL}, scale = {SIZE**-0.5}> (qw, kw, both, pk, pv, last32, longest32)
    y4 = Reshape (y, wide_heads)
    mean4, second = Split <axis = -1, num_outputs = 2> (y4)
{VARIANCE}"""
TWICE = f"""{LENGTHS}{ORIGIN}
    y, nk, nv = {KERNEL}> (q, k, v, pk, pv, last32, longest32)
    mean4 = Reshape (y, heads)
    square = Reshape (squares, flat)
    z, nk2, nv2 = {KERNEL}> (q, k, square, pk2, pv2, last32, longest32)
    second = Reshape (z, heads)
{VARIANCE}"""
WEIGHTS = f"""{LENGTHS}
    y, nk, nv, p = {KERNEL}, qk_output = 2> (q, k, v, pk, pv, last32, longest32,,,,)
    until = Reshape (longest, n1)
    seen = Slice (nv, n0, until, n2)
    c4 = Slice (nv, n0, n1, n2)
    w = Sub (seen, c4)
    squares = Mul (w, w)
    s = MatMul (p, squares)
    second = Transpose <perm = [0, 2, 1, 3]> (s)
    c = Transpose <perm = [0, 2, 1, 3]> (c4)
    mean4 = Reshape (y, heads)
{VARIANCE}"""
WAYS = {
    "plain": (PLAIN, ("k", "v"), SIZE),
    "beside": (BESIDE, ("k", "v"), 2 * SIZE),
    "twice": (TWICE, ("k", "v", "k2", "v2"), SIZE),
    "weights": (WEIGHTS, ("k", "v"), SIZE),
}


class Way:
    """One way, its caches filled and bound."""

    def __init__(self, name: str) -> None:
        body, self._caches, self._size = WAYS[name]
        self._shared = name != "plain"
        cache = f"float[B, {HEADS}, {'C' if self._shared else 'P'}, {self._size}]"
        past = ", ".join(f"{cache} p{c}" for c in self._caches)
        present = ", ".join(f"{cache.replace('P', 'S')} n{c}" for c in self._caches)
        inputs = f"{FLAT} q, {FLAT} k, {FLAT} v, {past}, int64[B] n"
        text = f"{HEAD}g ({inputs}) => ({FLAT} mean, {FLAT} variance, {present})\n"
        model = parser.parse_model(f"{text}<{CONSTANTS}>\n{{{body}}}")
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        self._session = ort.InferenceSession(
            model.SerializeToString(), options, ["CPUExecutionProvider"]
        )
        self._kept: list[ort.OrtValue] = []

    def bind(self, feed: dict[str, np.ndarray], history: dict[str, np.ndarray]) -> None:
        """Bind new tokens and what is cached, (1, H, P, D) each."""
        self._binding, self._kept = self._session.io_binding(), []
        known = {i.name for i in self._session.get_inputs()}
        for name in known & feed.keys():
            self._input(name, feed[name])
        depth, new = history["k"].shape[2], feed["q"].shape[1]
        capacity = max(256, 1 << (depth + new - 1).bit_length())
        for name in self._caches:
            if not self._shared:
                self._input(f"p{name}", history[name])
                self._binding.bind_output(f"n{name}")
                continue
            buffer = np.zeros((1, HEADS, capacity, self._size), np.float32)
            buffer[:, :, :depth, :SIZE] = history[name]
            if self._size > SIZE and name == "v":
                buffer[:, :, :depth, SIZE:] = history["v2"]
            self._binding.bind_ortvalue_output(f"n{name}", self._input(f"p{name}", buffer))
        for name in ("mean", "variance"):
            self._binding.bind_output(name)

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def _input(self, name: str, array: np.ndarray) -> ort.OrtValue:
        value = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
        self._kept.append(value)
        self._binding.bind_ortvalue_input(name, value)
        return value


def interleaved(calls: dict, repeats: int) -> dict[str, list[float]]:
    """Return the times (ms) of calls that take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            began = time.thread_time()
            call()
            times[name].append((time.thread_time() - began) * 1e3)
    return times


def show(depth: int, new: int, times: dict[str, list[float]]) -> None:
    medians = {name: round(float(np.median(found)), 3) for name, found in times.items()}
    print(f"{new} new after {depth}, ms: {medians}", flush=True)


def attention() -> None:
    """Time one layer's attention."""
    random = np.random.default_rng(0)
    ways = {name: Way(name) for name in WAYS}
    for depth, new in SHAPES:
        q, k, v = random.standard_normal((3, 1, new, WIDTH)).astype(np.float32)
        keys, values = random.standard_normal((2, 1, HEADS, depth, SIZE)).astype(np.float32)
        squares = (values - values[:, :, :1]) ** 2
        history = {"k": keys, "v": values, "k2": keys, "v2": squares}
        for way in ways.values():
            way.bind({"q": q, "k": k, "v": v, "n": np.array([depth])}, history)
            way.run()
        calls = {name: way.run for name, way in ways.items()}
        show(depth, new, interleaved(calls, 300 if new == 1 else 30))


def model(folder: Path) -> None:
    """Time the whole model with and without the pass."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.oracles import write_bundle
    from support.random_checkpoint import write_random_checkpoint

    from wiola_export import lower
    from wiola_export.options import Quantization
    from wiola_runtime.graph import Graph
    from wiola_runtime.manifest import Manifest
    from wiola_runtime.opening import GraphOptions

    structure = lower.structure

    def without(*arguments):
        return tuple(p for p in structure(*arguments) if type(p).__name__ != "FuseMoments")

    folder.mkdir()
    checkpoint = write_random_checkpoint(folder / "checkpoint", "moment-27m")
    graphs = {}
    for name, passes in (("plain", without), ("beside", structure)):
        with mock.patch.object(lower, "structure", passes):
            out = write_bundle(checkpoint, folder / name, "cpu", Quantization(precision="int8"))
        graphs[name] = Graph(out, Manifest.read(out), GraphOptions(threads=1))
    for depth, new in SHAPES:
        times = {name: [] for name in graphs}
        for _ in range(1 if new == 1 else 4):
            calls = {name: filled(graph, depth, new) for name, graph in graphs.items()}
            for name, found in interleaved(calls, 40 if new == 1 else 1).items():
                times[name] += found
        show(depth, new, times)


def filled(graph, depth: int, new: int):
    """Fill a state with so many tokens, and return a call that adds new ones."""
    state = graph.start()
    for _ in range(0, depth, 64):
        graph.run(state, np.full((1, 64), 7), np.array([63]))
    ids, wanted = np.full((1, new), 7), np.array([new - 1])
    return lambda: graph.run(state, ids, wanted)


if __name__ == "__main__":
    attention() if sys.argv[1] == "attention" else model(Path(sys.argv[2]))
