"""Bodies of the operators of domain `wiola`, in plain `ai.onnx` operators.

They are written in the ONNX text format, one file per operator beside this one, so that a reader
of the semantic graph can look up what each call means. Any ONNX runtime inlines them.
"""

from importlib import resources

import onnx.parser
import onnx_ir as ir

DOMAIN = "wiola"
VERSION = 1
OPSET = 21


def load_function(op_type: str) -> ir.Function:
    """Parse the body of one operator of the domain.

    Raises:
        FileNotFoundError: There is no such operator.
    """
    text = (resources.files(__name__) / f"{op_type}.onnxtxt").read_text(encoding="utf-8")
    return ir.serde.deserialize_function(onnx.parser.parse_function(text))


def is_call(node: ir.Node, op_type: str) -> bool:
    """Tell whether a node calls one operator of the domain."""
    return (node.domain, node.op_type) == (DOMAIN, op_type)
