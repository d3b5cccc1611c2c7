"""Graph rewrites, one file each; `wiola_export.lower` decides which ones and in what order.

Each pass replaces calls of domain `wiola` (or what an earlier pass made of them), keeps the names
of graph outputs, and changes nothing when it runs a second time.
"""
