"""The command `wiola-run`: continue a text with an exported bundle, or chat with it."""
