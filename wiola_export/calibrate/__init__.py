"""Quantization that looks at data: one layer of the float model at a time."""
