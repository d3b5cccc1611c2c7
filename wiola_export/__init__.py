"""Turn a Wiola checkpoint into a self-contained ONNX bundle that wiola-runtime can run."""

from wiola_export.errors import ExportError
from wiola_export.options import ExportOptions, Quantization, Source

__all__ = ["ExportError", "ExportOptions", "Quantization", "Source"]
