"""Run a graph by hand, with none of the runtime's code.

Axes: B batch, T new positions, V vocabulary, P cached positions, C cache capacity.
"""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
CAPACITY = 64
ALL_LEVELS = (
    ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
)


def to_bytes(model: ir.Model) -> bytes:
    """Serialize a small model with all its weights inside."""
    return ir.serde.serialize_model(model).SerializeToString(deterministic=True)


class GraphRunner:
    """A graph of the bundle contract: feed tokens and a state, get logits and the next state.

    Args:
        model: A graph in memory, or the path of one.
        capacity: Cache capacity C of graphs that share past and present.
        level: How far ONNX Runtime may rewrite the graph.
    """

    def __init__(self, model, capacity=CAPACITY, level=ALL_LEVELS[-1]) -> None:
        options = ort.SessionOptions()
        options.add_session_config_entry("session.x64quantprecision", "1")  # exact everywhere
        options.log_severity_level = 3
        options.graph_optimization_level = level
        source = to_bytes(model) if isinstance(model, ir.Model) else model
        self.session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        self.capacity = capacity
        self.state_inputs = [i for i in self.session.get_inputs() if i.type in DTYPES]

    def empty(self, batch: int) -> dict[str, np.ndarray]:
        """Return the state of rows that have seen nothing."""
        sizes = {"B": batch, "P": 0, "C": self.capacity}
        return {
            i.name: np.zeros([sizes.get(axis, axis) for axis in i.shape], DTYPES[i.type])
            for i in self.state_inputs
        }

    def run(self, ids, lengths, state, wanted=None):
        """Return logits (B, T, V), the next state, and every output by name."""
        feed = {
            "input_ids": np.asarray(ids, np.int64),
            "past_lengths": np.asarray(lengths, np.int64),
            "output_positions": np.arange(ids.shape[1]) if wanted is None else wanted,
            **state,
        }
        names = [o.name for o in self.session.get_outputs()]
        found = dict(zip(names, self.session.run(names, feed), strict=True))
        past = {i.name: found[present_of(i.name)] for i in self.state_inputs}
        return found["logits"], past, found

    def all_at_once(self, ids):
        """Return logits (B, T, V) of one pass and every output."""
        logits, _, found = self.run(ids, np.zeros(len(ids)), self.empty(len(ids)))
        return logits, found

    def in_chunks(self, ids, sizes):
        """Return logits (B, T, V) of rows fed in chunks of such sizes, and the last outputs."""
        state, done, parts, found = self.empty(len(ids)), 0, [], {}
        for size in sizes:
            chunk = ids[:, done : done + size]
            logits, state, found = self.run(chunk, np.full(len(ids), done), state)
            parts.append(logits)
            done += size
        return np.concatenate(parts, axis=1), found


def present_of(past: str) -> str:
    """Return the output that is fed back into an input."""
    return past.replace("past_key_values", "present").replace("past_", "present_")


def run_nodes(model: ir.Model, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Run a small graph of any inputs and return its outputs."""
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # exact everywhere
    options.log_severity_level = 3
    session = ort.InferenceSession(to_bytes(model), options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)


def distance(found, expected) -> float:
    """Return the largest |difference|, in float64; NaN counts as infinite."""
    gap = np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64)).max()
    return float("inf") if np.isnan(gap) else float(gap)
