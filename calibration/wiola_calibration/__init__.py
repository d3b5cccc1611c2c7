"""Text for measuring and calibrating: packaged corpora, a user's files, equal windows."""

from wiola_calibration.corpus import PACKAGED, Text, packaged_text, user_text
from wiola_calibration.errors import CorpusError
from wiola_calibration.packing import Packed, TextRecord, pack, pack_all

__all__ = [
    "PACKAGED",
    "CorpusError",
    "Packed",
    "Text",
    "TextRecord",
    "pack",
    "pack_all",
    "packaged_text",
    "user_text",
]
