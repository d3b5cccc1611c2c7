"""What is kept of the inputs of a matrix: their second moments.

Axes: S tokens, K features.
"""

import torch
from torch import Tensor


class Moments:
    """Streaming sums over tokens; memory does not grow with their number.

    With x what the matrix reads in the quantized model and y what it reads in the float model:

    Attributes:
        inputs: Σ x xᵀ, float32 (K, K).
        cross: Σ y xᵀ, float32 (K, K).
        tokens: How many.
    """

    def __init__(self, features: int) -> None:
        self.inputs = torch.zeros(features, features)
        self.cross = torch.zeros(features, features)
        self.tokens = 0

    def add(self, quantized: Tensor, original: Tensor) -> None:
        """Add tokens (…, K) as the two models see them."""
        x = quantized.reshape(-1, quantized.shape[-1])
        y = original.reshape(-1, original.shape[-1])
        self.inputs.addmm_(x.T, x)
        self.cross.addmm_(y.T, x)
        self.tokens += len(x)
