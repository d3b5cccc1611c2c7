"""Text for measuring and calibrating: packaged corpora, a user's files, equal windows."""

from wiola_calibration.corpus import PACKAGED, Text, packaged_text, user_text
from wiola_calibration.dataset import CalibrationSet, calibration_set
from wiola_calibration.errors import CorpusError
from wiola_calibration.overlap import Overlap
from wiola_calibration.packing import Packed, TextRecord, pack, pack_all
from wiola_calibration.record import CalibrationFileRecord, CalibrationRecord
from wiola_calibration.sampling import Sampling
from wiola_calibration.sources import (
    CalibrationFile,
    CalibrationFiles,
    packaged_calibration,
    user_calibration,
)
from wiola_calibration.tokenization import Tokenization

__all__ = [
    "PACKAGED",
    "CalibrationFile",
    "CalibrationFileRecord",
    "CalibrationFiles",
    "CalibrationRecord",
    "CalibrationSet",
    "CorpusError",
    "Overlap",
    "Packed",
    "Sampling",
    "Text",
    "TextRecord",
    "Tokenization",
    "calibration_set",
    "pack",
    "pack_all",
    "packaged_calibration",
    "packaged_text",
    "user_calibration",
    "user_text",
]
