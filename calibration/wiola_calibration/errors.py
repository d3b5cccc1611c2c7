"""Everything calibration raises on purpose.

WiolaRuntimeError
└── CorpusError       a text cannot be read, or holds too little to be used
"""

from wiola_runtime.errors import WiolaRuntimeError


class CorpusError(WiolaRuntimeError):
    """A text cannot be read, or holds too little to be used."""
