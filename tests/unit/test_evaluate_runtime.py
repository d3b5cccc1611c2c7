"""Evaluation as a whole: a packaged text, a real tokenizer, a bundle run by the runtime."""

from pathlib import Path

import numpy as np
import pytest
import tokenizers
from support.tiny_bundle import TinyBundle

import wiola_runtime as wr
from wiola_calibration import pack, packaged_text
from wiola_export.evaluate import compare

DEMO = Path(__file__).parents[2] / "wiola_export" / "demo"


@pytest.mark.parametrize("name", ["austen", "kjv"])
def test_reading_in_pieces_gives_the_tokens_of_the_whole_text(name):
    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    text = packaged_text(name)
    whole = tokenizer.encode(text.path.read_text(encoding="utf-8")).ids

    packed = pack(
        text,
        lambda piece: tokenizer.encode(piece).ids,
        context=256,
        max_windows=1000,
        bos_id=1,
    )

    flat = packed.windows.ravel()
    assert flat.tolist() == [1, *whole][: flat.size]
    assert packed.texts[0].tokens == 1 + len(whole)
    assert packed.texts[0].complete


def test_a_bundle_agrees_with_its_formulas_through_the_runtime(tmp_path):
    tiny = TinyBundle()
    with wr.load(tiny.write(tmp_path / "tiny")) as model:
        packed = pack(
            packaged_text("kjv"), model.tokenizer.encode, context=40, max_windows=5, bos_id=1
        )
        reference = (
            np.stack([tiny.oracle(ids) for ids in packed.windows[i : i + 2]]).astype(np.float32)
            for i in range(0, 5, 2)
        )
        drop = compare(reference, model.logits, packed.windows)

    assert (drop.windows, drop.context, drop.tokens) == (5, 40, 5 * 39)
    assert drop.reference_ppl > 2
    assert drop.ppl_ratio == pytest.approx(1.0, abs=1e-5)
    assert drop.kl_nats.max < 1e-6
    assert drop.top1_agreement == 1.0
