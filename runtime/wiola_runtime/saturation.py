"""Ask this processor whether its fast products of 8-bit integers are exact."""

import functools
from types import ModuleType

import numpy as np

from wiola_runtime.devices import version
from wiola_runtime.errors import BundleError
from wiola_runtime.manifest import Manifest

ABORTS = (1, 25), (1, 30)  # ONNX Runtime, while it rewrites signed weights for its exact kernels
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


def check_rewriting(ort: ModuleType, manifest: Manifest) -> None:
    """Refuse 8-bit activations where ONNX Runtime would end the whole process.

    Raises:
        BundleError: It is one of the versions that do, and this processor needs the exact kernels.
    """
    rounds = manifest.quantization.scheme in {"dynamic", "static"}
    if rounds and ABORTS[0] <= version(ort.__version__) < ABORTS[1] and saturates(ort):
        raise BundleError(
            f"onnxruntime {ort.__version__} would crash here on bundle {manifest.name}, whose "
            "activations have 8 bits; run: pip install 'onnxruntime>=1.30'"
        )
