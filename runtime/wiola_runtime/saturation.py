"""Ask this processor whether its fast products of 8-bit integers are exact."""

import functools
from types import ModuleType

import numpy as np

# y = MatMulInteger(a, b): uint8 (m, k) and int8 (k, n) to int32 (m, n), opset 10.
PRODUCT = (
    b'\x08\x05:b\n\x18\n\x01a\n\x01b\x12\x01y"\rMatMulInteger\x12\x01gZ\x15\n\x01a\x12\x10\n\x0e'
    b"\x08\x02\x12\n\n\x03\x12\x01m\n\x03\x12\x01kZ\x15\n\x01b\x12\x10\n\x0e\x08\x03\x12\n\n\x03"
    b"\x12\x01k\n\x03\x12\x01nb\x15\n\x01y\x12\x10\n\x0e\x08\x06\x12\n\n\x03\x12\x01m\n\x03\x12\x01n"
    b"B\x04\n\x00\x10\n"
)


@functools.cache
def saturates(ort: ModuleType) -> bool:
    """Tell whether ONNX Runtime adds two products in 16 bits here: AVX2 without VNNI does."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(PRODUCT, options, providers=["CPUExecutionProvider"])
    a, b = np.full((4, 64), 255, np.uint8), np.full((64, 16), 127, np.int8)
    return bool((session.run(None, {"a": a, "b": b})[0] != 64 * 255 * 127).any())
