"""Products of 8-bit integers must be exact, and take the fast kernels where those are."""

import dataclasses
import types

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from support.graphs import to_bytes
from support.tiny_bundle import TinyBundle

from wiola_runtime import BundleError, opening, saturation
from wiola_runtime.opening import GraphOptions

EXACT = "session.x64quantprecision"


def test_the_probe_is_one_product():
    a, b, y = (
        value("a", ir.DataType.UINT8, "mk"),
        value("b", ir.DataType.INT8, "kn"),
        value("y", ir.DataType.INT32, "mn"),
    )
    node = ir.node("MatMulInteger", [a, b], outputs=[y], name="")
    graph = ir.Graph([a, b], [y], nodes=[node], opset_imports={"": 10}, name="g")
    node.name = ""  # the graph had named it

    assert to_bytes(ir.Model(graph, ir_version=5)) == saturation.PRODUCT


@pytest.mark.parametrize("saturates", [True, False])
def test_slow_exact_kernels_are_asked_for_only_where_fast_ones_saturate(monkeypatch, saturates):
    monkeypatch.setattr(opening, "saturates", lambda _: saturates)

    native = opening._native_options(ort, GraphOptions())

    if saturates:
        assert native.get_session_config_entry(EXACT) == "1"
    else:
        with pytest.raises(RuntimeError, match=EXACT):
            native.get_session_config_entry(EXACT)


def test_no_product_saturates_with_the_options_of_the_runtime():
    """Weights are constant, as a bundle's are: those ONNX Runtime packs, and may rewrite."""
    a, y = value("a", ir.DataType.UINT8, "mk"), value("y", ir.DataType.INT32, "mn")
    weights = np.full((256, 16), 127, np.int8)
    b = ir.Value(name="b", const_value=ir.tensor(weights, name="b"))
    node = ir.node("MatMulInteger", [a, b], outputs=[y])
    graph = ir.Graph(
        [a], [y], nodes=[node], initializers=[b], opset_imports={"": 10}, name="product"
    )
    session = ort.InferenceSession(
        to_bytes(ir.Model(graph, ir_version=5)), opening._native_options(ort, GraphOptions())
    )

    for rows in (1, 4, 64):  # one row has a kernel of its own
        (found,) = session.run(None, {"a": np.full((rows, 256), 255, np.uint8)})
        assert np.array_equal(found, np.full((rows, 16), 256 * 255 * 127))


@pytest.mark.parametrize(("lost", "saturates"), [(0, False), (1, True)])
def test_the_processor_is_asked_with_extremes(lost, saturates):
    """A stand-in answers as it should, or less."""

    class Session:
        def __init__(self, *_, **__):
            pass

        def run(self, _, feed):
            return [feed["a"].astype(np.int64) @ feed["b"].astype(np.int64) - lost]

    class Ort:
        SessionOptions = ort.SessionOptions
        InferenceSession = Session

    assert saturation.saturates(Ort) is saturates


@pytest.mark.parametrize(
    ("version", "scheme", "saturates", "refused"),
    [
        ("1.24.4", "dynamic", True, False),
        ("1.25.1", "dynamic", True, True),
        ("1.29.0", "static", True, True),
        ("1.30.0", "static", True, False),
        ("1.26.0", "weight-only", True, False),
        ("1.26.0", "dynamic", False, False),
    ],
)
def test_an_onnxruntime_that_would_abort_is_refused(
    monkeypatch, version, scheme, saturates, refused
):
    monkeypatch.setattr(saturation, "saturates", lambda _: saturates)
    plain = TinyBundle().manifest({})
    manifest = dataclasses.replace(
        plain, quantization=dataclasses.replace(plain.quantization, scheme=scheme)
    )
    ort = types.SimpleNamespace(__version__=version)

    if not refused:
        saturation.check_rewriting(ort, manifest)
        return
    message = (
        f"^onnxruntime {version} would crash here on bundle .*: pip install 'onnxruntime>=1.30'$"
    )
    with pytest.raises(BundleError, match=message):
        saturation.check_rewriting(ort, manifest)


def value(name, kind, axes):
    return ir.Value(name=name, shape=ir.Shape(list(axes)), type=ir.TensorType(kind))
