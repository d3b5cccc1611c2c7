"""Wiola with cross-layer context attention (arXiv 2607.01394; package `wiola` 0.1.1)."""

from typing import TYPE_CHECKING

from wiola_export.families.gcla.config import (
    CHAT_ROLES,
    MARKER_KEYS,
    TURN_END,
    VARIANTS,
    GclaConfig,
)

if TYPE_CHECKING:
    from wiola_export.families.layered import LayeredModel

__all__ = ["CHAT_ROLES", "MARKER_KEYS", "TURN_END", "VARIANTS", "GclaConfig", "build_model"]


def build_model(config: GclaConfig) -> "LayeredModel":
    """Build the torch model; its parameters are on torch's default device."""
    from wiola_export.families.gcla.modules import GclaModel  # noqa: PLC0415  torch is heavy

    return GclaModel(config)
