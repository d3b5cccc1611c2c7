"""Read a checkpoint folder: every file is checked before any heavy work, weights come by rows."""

from wiola_export.checkpoint.reader import Checkpoint, open_checkpoint
from wiola_export.checkpoint.tokenizer_files import TokenizerFiles

__all__ = ["Checkpoint", "TokenizerFiles", "open_checkpoint"]
