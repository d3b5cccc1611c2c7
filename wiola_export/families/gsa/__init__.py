"""Wiola 13M with gated spiral attention (arXiv 2608.14604; package `wiola13m` 1.0.1)."""

from typing import TYPE_CHECKING

from wiola_export.families.gsa.config import MARKER_KEYS, VARIANTS, GsaConfig

if TYPE_CHECKING:
    from wiola_export.families.layered import LayeredModel

__all__ = ["MARKER_KEYS", "VARIANTS", "GsaConfig", "build_model"]


def build_model(config: GsaConfig) -> "LayeredModel":
    """Build the torch model; its parameters are on torch's default device."""
    from wiola_export.families.gsa.modules import GsaModel  # noqa: PLC0415  torch is heavy

    return GsaModel(config)
