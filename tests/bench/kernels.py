"""What ONNX Runtime's kernels cost on this machine, one token at a time: python kernels.py.

Products are timed over many different matrices, more than fit the caches, as a model reads them;
small nodes in chains of one kind. Medians.
"""

import sys
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.graphs import to_bytes

from wiola_export.passes.surgery import MICROSOFT, initializer

WEIGHTS = 200 << 20  # of all matrices of one kind together
SHAPES = ((768, 4608), (3072, 768), (768, 768), (768, 32000))  # input and output features
FORMS = (
    *((4, 32, False), (4, 32, True), (4, 64, False), (4, 128, False)),
    *((8, 32, False), (8, 128, False)),
)  # bits, block, symmetric
CHAIN = 300


def main():
    for columns, rows in SHAPES:
        for bits, block, symmetric in FORMS:
            seconds = product(columns, rows, bits, block, symmetric)
            # A block has codes, a scale, and the product of scale and zero point, both float32.
            size = rows * columns * (bits / 8 + 8 / block)
            print(
                f"{columns} x {rows}, {bits} bits, block {block}{', symmetric' * symmetric}: "
                f"{seconds * 1e6:.0f} us, {rows * columns / seconds / 1e9:.0f} billion weights/s, "
                f"{size / seconds / 1e9:.0f} GB/s"
            )
    for kind, make in NODES.items():
        print(f"{kind}: {chain(make) * 1e6:.2f} us")


def product(columns, rows, bits, block, symmetric):
    """Return the seconds of one MatMulNBits."""
    rng = np.random.default_rng(0)
    blocks, copies = columns // block, max(WEIGHTS // (rows * columns), 2)
    nodes, tensors = [], {}
    for copy in range(copies):
        parts = {
            f"codes{copy}": rng.integers(0, 256, (rows, blocks, block * bits // 8), np.uint8),
            f"scales{copy}": np.full(rows * blocks, 0.01, np.float32),
        }
        if not symmetric:
            zeros = rows * -(-blocks * bits // 8)
            parts[f"zero_points{copy}"] = rng.integers(0, 256, zeros, np.uint8)
        attributes = {"K": columns, "N": rows, "bits": bits, "block_size": block}
        attributes["accuracy_level"] = 4
        nodes.append(("MatMulNBits", ["x", *parts], [f"y{copy}"], attributes))
        tensors |= parts
    return timed(nodes, tensors, columns, [outputs[0] for _, _, outputs, _ in nodes]) / copies


SKIP_NORM = "SkipSimplifiedLayerNormalization"
NODES = {
    "Add": lambda x, y: [("Add", [x, "row"], [y], {})],
    "Mul": lambda x, y: [("Mul", [x, "row"], [y], {})],
    "Sigmoid": lambda x, y: [("Sigmoid", [x], [y], {})],
    "QuickGelu": lambda x, y: [("QuickGelu", [x], [y], {"alpha": 1.0})],
    "CumSum": lambda x, y: [("CumSum", [x, "axis"], [y], {})],
    "Split and Concat": lambda x, y: [
        ("Split", [x], [f"{y}a", f"{y}b"], {"axis": -1, "num_outputs": 2}),
        ("Concat", [f"{y}a", f"{y}b"], [y], {"axis": -1}),
    ],
    SKIP_NORM: lambda x, y: [(SKIP_NORM, [x, x, "row"], [y], {"epsilon": 1e-5})],
}
OURS = {"MatMulNBits", "QuickGelu", SKIP_NORM}  # of domain com.microsoft


def chain(make):
    """Return the seconds of a node of one kind on 768 features."""
    nodes = [node for i in range(CHAIN) for node in make(f"v{i}" if i else "x", f"v{i + 1}")]
    tensors = {"row": np.ones(768, np.float32), "axis": np.array(1, np.int64)}
    return timed(nodes, tensors, 768, [f"v{CHAIN}"]) / CHAIN


def timed(nodes, tensors, columns, outputs, repeats=30):
    """Return the seconds of one run of a graph that reads x (1, 1, columns)."""
    x = ir.Value(
        name="x",
        shape=ir.Shape(["B", "T", columns]),
        type=ir.TensorType(ir.DataType.FLOAT),
    )
    values = {"x": x}
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 21, MICROSOFT: 1}, name="kernels")
    for name, array in tensors.items():
        values[name] = initializer(graph, ir.tensor(array, name=name), name)
    for op_type, inputs, results, attributes in nodes:
        domain = MICROSOFT if op_type in OURS else ""
        node = ir.node(
            op_type,
            [values[name] for name in inputs],
            attributes,
            domain=domain,
            num_outputs=len(results),
        )
        values |= dict(zip(results, node.outputs, strict=True))
        graph.append(node)
    for name in outputs:
        values[name].name = name
        values[name].type = x.type
        graph.outputs.append(values[name])
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(
        to_bytes(ir.Model(graph, ir_version=10)), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.ones((1, 1, columns), np.float32))
    for name in outputs:
        binding.bind_output(name, "cpu")
    times = []
    for _ in range(3 + repeats):
        began = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append(time.perf_counter() - began)
    return float(np.median(times[3:]))


if __name__ == "__main__":
    main()
