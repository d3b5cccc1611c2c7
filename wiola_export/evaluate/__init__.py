"""Measure a bundle with the runtime that ships: what it forgot, how fast it is."""
