"""Every choice an export can make, checked once and frozen."""

from wiola_export.options.budget import Budget
from wiola_export.options.calibration import DATA_FREE, CalibrationOptions
from wiola_export.options.export import ExportOptions
from wiola_export.options.quantization import (
    BLOCK_SIZES,
    CALIBRATED,
    DEFAULT_BLOCK_SIZES,
    FINEST_BLOCK_SIZE,
    Calibrator,
    Method,
    Quantization,
    Scheme,
    Smoothing,
)
from wiola_export.options.source import DEMOS, Source

__all__ = [
    "BLOCK_SIZES",
    "CALIBRATED",
    "DATA_FREE",
    "DEFAULT_BLOCK_SIZES",
    "DEMOS",
    "FINEST_BLOCK_SIZE",
    "Budget",
    "CalibrationOptions",
    "Calibrator",
    "ExportOptions",
    "Method",
    "Quantization",
    "Scheme",
    "Smoothing",
    "Source",
]
