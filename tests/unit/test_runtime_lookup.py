"""Guesses are what followed the last time."""

from hypothesis import given
from hypothesis import strategies as st

from wiola_runtime.lookup import GRAMS, PromptLookup

TEXTS = st.lists(st.integers(0, 3), max_size=40)


def continued(ids, count):
    """Find the longest gram's latest earlier end by looking everywhere, and copy on from it."""
    for size in GRAMS:
        ends = [e for e in range(size, len(ids)) if ids[e - size : e] == ids[-size:]]
        if len(ids) >= size and ends:
            text = list(ids)
            for offset in range(count):
                text.append(text[ends[-1] + offset])
            return text[len(ids) :]
    return []


@given(ids=TEXTS, count=st.integers(0, 6))
def test_the_latest_earlier_occurrence_is_copied(ids, count):
    assert PromptLookup(ids).guess(count) == continued(ids, count)


@given(ids=TEXTS, cut=st.integers(0, 40))
def test_tokens_may_come_one_by_one(ids, cut):
    lookup = PromptLookup(ids[:cut])
    for token_id in ids[cut:]:
        lookup.note(token_id)

    assert lookup.token_ids == ids
    assert lookup.guess(4) == PromptLookup(ids).guess(4)


def test_a_repetition_goes_on_in_its_own_guess():
    assert PromptLookup([9, 1, 2, 1, 2, 1, 2]).guess(5) == [1, 2, 1, 2, 1]
