"""Attention that reads the content and the variance of what it sees (no public package)."""

from typing import TYPE_CHECKING

from wiola_export.families.moment.config import MARKER_KEYS, VARIANTS, MomentConfig

if TYPE_CHECKING:
    from wiola_export.families.layered import LayeredModel

__all__ = ["MARKER_KEYS", "VARIANTS", "MomentConfig", "build_model"]


def build_model(config: MomentConfig) -> "LayeredModel":
    """Build the torch model; its parameters are on torch's default device."""
    from wiola_export.families.moment.modules import MomentModel  # noqa: PLC0415  torch is heavy

    return MomentModel(config)
