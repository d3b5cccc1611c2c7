"""The self-test: it passes where the numbers agree and says what differs where they do not."""

import dataclasses

import numpy as np
import pytest
from support.tiny_bundle import TinyBundle

from wiola_runtime import SelfTestError, load
from wiola_runtime.manifest import GoldenLogits, SelfTest
from wiola_runtime.self_test import compare

# Logits (T, V) of two prompt tokens and a reply of two: greedy ids 1 and 2.
LOGITS = np.asarray([[0, 0, 9], [1, 5, 3], [2, 1, 6], [4, 4, 4]], np.float32)
GOLDEN = SelfTest(
    prompt_ids=(0, 2),
    token_ids=(1, 2),
    logits=(GoldenLogits(position=1, token_ids=(1, 2), values=(5.0, 3.0)),),
    tolerance=0.1,
)


def test_agreement_passes():
    report = compare(GOLDEN, LOGITS + 0.05, [1, 2])

    report.require()
    assert report.passed
    assert report.mismatch is None
    assert report.max_abs_difference == pytest.approx(0.05, abs=1e-6)
    assert report.largest_at == (1, 1)
    assert report.tolerance == 0.1
    assert compare(dataclasses.replace(GOLDEN, logits=()), LOGITS, [1, 2]).largest_at is None


@pytest.mark.parametrize(
    ("logits", "greedy_ids", "message"),
    [
        (
            LOGITS + np.asarray([0, 0.2, 0.3]),
            [1, 2],
            r"at position 1 the logit of token 2 is 3\.3, the bundle says 3 and allows 0\.1",
        ),
        (LOGITS * np.nan, [1, 2], r"at position 1 the logit of token 1 is nan, the bundle says 5"),
        (LOGITS * [1, 1, np.inf], [1, 2], r"at position 1 the logit of token 2 is inf, the bundle"),
        (LOGITS[:, ::-1], [1, 2], r"at position 1 the logit of token 2 is 1, the bundle says 3"),
        (np.asarray([*LOGITS[:2], [7, 1, 6], LOGITS[3]]), [1, 2], "token 1 of the reply is 0"),
        (LOGITS, [1, 0], r"decoding gives 0 as token 1, not 2"),
    ],
)
def test_a_difference_is_named(logits, greedy_ids, message):
    report = compare(GOLDEN, np.asarray(logits, np.float32), greedy_ids)

    assert not report.passed
    with pytest.raises(SelfTestError, match=rf"{message}.*; copy the bundle again or export"):
        report.require()


def test_two_tokens_that_nearly_tie_are_both_right():
    """From a tie on, the greedy reply may go its own way."""
    logits = LOGITS.copy()
    logits[1] = [0, 5, 5.05]
    golden = dataclasses.replace(GOLDEN, logits=())

    assert compare(golden, logits, [2, 0]).passed
    assert not compare(golden, logits, [1, 0]).passed


@pytest.fixture
def tested(tmp_path):
    """Write a bundle whose golden values come from the numpy oracle."""
    bundle = TinyBundle()
    folder = bundle.write(tmp_path / "b")
    with load(folder) as model:
        prompt_ids = tuple(model.tokenizer.encode("It is"))
        token_ids = model.generate(prompt_ids, max_new_tokens=8).token_ids
        manifest = model.manifest
    logits = bundle.oracle([*prompt_ids, *token_ids])
    golden = SelfTest(
        prompt_ids=prompt_ids,
        token_ids=token_ids,
        logits=(
            GoldenLogits(position=4, token_ids=(7, 8), values=tuple(map(float, logits[4, 7:9]))),
        ),
        tolerance=1e-4,
    )
    manifest = dataclasses.replace(manifest, self_test=golden)
    (folder / "manifest.json").write_text(manifest.to_json())
    return folder, manifest


def test_a_bundle_reproduces_its_golden_values(tested):
    with load(tested[0]) as model:
        report = model.self_test()

    assert report.passed, report.mismatch
    assert 0 < report.max_abs_difference < 1e-4


def test_other_golden_values_are_noticed(tested):
    folder, manifest = tested
    golden = manifest.self_test
    other = dataclasses.replace(golden, token_ids=(*golden.token_ids[:-1], 0))
    changed = dataclasses.replace(manifest, self_test=other)
    (folder / "manifest.json").write_text(changed.to_json())

    with load(folder) as model:
        report = model.self_test()

    assert report.mismatch == (f"token 7 of the reply is {golden.token_ids[-1]}, the bundle says 0")


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_ids": ()},
        {"token_ids": ()},
        {"prompt_ids": (10**6,)},
        {"token_ids": (-1,) * 8},
        {"prompt_ids": (5,) * 600},
        {"logits": (GoldenLogits(position=10**6, token_ids=(7,), values=(0.0,)),)},
        {"logits": (GoldenLogits(position=-1, token_ids=(7,), values=(0.0,)),)},
        {"logits": (GoldenLogits(position=0, token_ids=(10**6,), values=(0.0,)),)},
        {"logits": (GoldenLogits(position=0, token_ids=(7, 8), values=(0.0,)),)},
    ],
    ids=str,
)
def test_golden_values_of_what_there_is_not_are_refused(tested, change):
    folder, manifest = tested
    golden = dataclasses.replace(manifest.self_test, **change)
    (folder / "manifest.json").write_text(dataclasses.replace(manifest, self_test=golden).to_json())

    with load(folder) as model:
        with pytest.raises(SelfTestError, match=r"self-test of bundle tiny is damaged; export ag"):
            model.self_test()


def test_a_bundle_without_golden_values_says_so(tmp_path):
    with load(TinyBundle().write(tmp_path / "b")) as model:
        with pytest.raises(SelfTestError, match=r"bundle tiny has no self-test; export again"):
            model.self_test()
