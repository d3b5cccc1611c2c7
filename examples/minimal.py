"""Load a bundle and stream a reply: `python minimal.py BUNDLE "It is a truth"`."""

import sys

import wiola_runtime as wr

try:
    bundle, prompt = sys.argv[1:]
except ValueError:
    sys.exit(__doc__)
with wr.load(bundle) as model:
    for piece in model.stream(prompt, max_new_tokens=64):
        print(piece.text, end="", flush=True)
print()
