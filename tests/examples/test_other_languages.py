"""The page for hosts in other languages shows a manifest as bundles have it."""

import json
import re

from support import languages
from support.tiny_bundle import TinyBundle

from wiola_runtime.manifest import ChatSpec

PAGE = languages.EXAMPLES / "other_languages.md"
LEFT_OUT = "…"
CHAT = ChatSpec(
    template=None,
    roles={"system": "<unk>", "user": "<pad>", "assistant": "<eos>"},
    turn_end="<eos>",
)


def unknown(shown, real, path="manifest"):
    """Yield what an excerpt shows, or silently leaves out, otherwise than a whole manifest."""
    if isinstance(shown, dict) and isinstance(real, dict):
        keys = shown.keys() - {LEFT_OUT}
        if not keys <= real.keys() or (LEFT_OUT not in shown and keys != real.keys()):
            yield f"{path}: {sorted(keys ^ real.keys())}"
        for key in keys & real.keys():
            yield from unknown(shown[key], real[key], f"{path}.{key}")
    elif isinstance(shown, list) and isinstance(real, list):
        if shown and real:
            yield from unknown(shown[0], real[0], f"{path}[0]")
    elif type(shown) is not type(real):
        yield f"{path}: {shown!r}, not {real!r}"


def test_the_manifest_of_the_page_has_the_fields_of_a_bundle(tmp_path):
    (excerpt,) = re.findall(
        r"^```json\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    bundle = languages.write_tested(TinyBundle(chat=CHAT), tmp_path / "b")
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))

    assert list(unknown(json.loads(excerpt), manifest)) == []
