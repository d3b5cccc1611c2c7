"""A plan spends what it may, costs what it says, and reads back as it was written."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wiola_export.errors import OptionError
from wiola_export.quantize.formats import Blocks, Floats
from wiola_export.quantize.plan import (
    Choice,
    Plan,
    choose_by_cost,
    choose_by_size,
    plan_of,
    read_plan,
    stored_bytes,
)
from wiola_runtime.manifest import QuantizedTensor

FOUR, EIGHT = Blocks(bits=4, block_size=32), Blocks(bits=8, block_size=64)
FORMS = (FOUR, EIGHT, Floats("float32"))
SHAPES = {"layers.0.q.weight": (8, 64), "embed.weight": (32, 64), "norm.weight": (64,)}

ladders = st.lists(
    st.tuples(st.integers(1, 50), st.floats(0, 1, width=32)), min_size=1, max_size=3, unique=True
)
models = st.dictionaries(st.sampled_from("abcde"), ladders, min_size=1, max_size=4)


def choices_of(model):
    return {
        name: [
            Choice(form=FORMS[i], kl_nats=cost, size_bytes=size)
            for i, (size, cost) in enumerate(ladder)
        ]
        for name, ladder in model.items()
    }


def totals(plan, choices):
    """Return size and cost of a plan."""
    chosen = [next(c for c in choices[name] if c.form == form) for name, form in plan.forms.items()]
    return sum(c.size_bytes for c in chosen), sum(c.kl_nats for c in chosen)


def every_plan(choices):
    """Yield size and cost of every plan there is."""
    for chosen in itertools.product(*choices.values()):
        yield sum(c.size_bytes for c in chosen), sum(c.kl_nats for c in chosen)


@given(models, st.integers(1, 200))
@settings(max_examples=200, deadline=None)
def test_a_plan_of_a_size_fits_it_and_is_near_the_best_of_all(model, limit):
    """At worst a greedy plan misses one step of one tensor: what that would have saved."""
    choices = choices_of(model)
    plan = choose_by_size(choices, limit)
    fitting = [cost for size, cost in every_plan(choices) if size <= limit]

    if plan is None:
        assert not fitting
        return
    size, cost = totals(plan, choices)
    assert size <= limit
    assert cost == pytest.approx(plan.kl_nats)
    largest_step = max(max(c.kl_nats for c in ladder) for ladder in choices.values())
    assert cost <= min(fitting) + largest_step + 1e-9


@given(models, st.floats(0, 2, width=32))
@settings(max_examples=200, deadline=None)
def test_a_plan_of_a_cost_keeps_it_and_no_limit_takes_the_smallest(model, limit):
    choices = choices_of(model)
    plan = choose_by_cost(choices, limit)

    if plan is None:
        assert min(cost for _, cost in every_plan(choices)) > limit - 1e-9
    else:
        assert totals(plan, choices)[1] <= limit + 1e-9
    smallest = choose_by_cost(choices, float("inf"))
    assert totals(smallest, choices)[0] == min(size for size, _ in every_plan(choices))


@given(models, st.integers(1, 100), st.integers(0, 100))
@settings(max_examples=100, deadline=None)
def test_without_ties_more_bytes_never_cost_more_by_more_than_a_step(model, limit, more):
    choices = choices_of(model)
    small, large = (choose_by_size(choices, size) for size in (limit, limit + more))

    if small is not None:
        step = max(max(c.kl_nats for c in ladder) for ladder in choices.values())
        assert large.kl_nats <= small.kl_nats + step


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (Floats("float16"), 3 * 40 * 2),
        (Blocks(bits=4, block_size=32), 3 * (2 * 16 + 2 * 4 + 1)),
        (Blocks(bits=8, block_size=16, symmetric=True), 3 * (3 * 16 + 3 * 4)),
        (Blocks(bits=8, block_size=64, scales="float16"), 3 * (64 + 2 + 1)),
    ],
)
def test_stored_bytes_are_those_of_the_kernels_layout(form, expected):
    """Three rows of 40 features; blocks are filled up, zero points packed row by row."""
    assert stored_bytes((3, 40), form) == expected


def test_a_plan_is_a_small_file_that_reads_back(tmp_path):
    plan = Plan(forms={"layers.0.q.weight": FOUR, "embed.weight": Floats("float32")})
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())

    assert read_plan(path, SHAPES, "float32").forms == plan.forms
    assert len(path.read_text().splitlines()) == 4 + 2 + 1
    assert read_plan(path, SHAPES, "float16").forms["embed.weight"] == Floats("float16")


def test_a_bundle_gives_its_plan():
    tensor = QuantizedTensor(
        name="q+k", sources=("q", "k"), shape=(8, 64), bits=8, block_size=64, symmetric=True,
        size_bytes=1, note="",
    )  # fmt: skip

    forms = plan_of([tensor]).forms

    assert forms == dict.fromkeys(("q", "k"), Blocks(bits=8, block_size=64, symmetric=True))


WRONG = {
    "has plan_version None; expected 1": "[]",
    "has plan_version 9; expected 1": '{"plan_version": 9}',
    "is not readable JSON": "{",
    "has no tensors; expected an object of tensor names": '{"plan_version": 1}',
    "the model has no matrix layers.0.k.weight; did you mean layers.0.q.weight?": {
        "layers.0.k.weight": {"bits": 4, "block_size": 32}
    },
    "the model has no matrix norm.weight": {"norm.weight": {"bits": 4, "block_size": 32}},
    'embed.weight is {"bits": 5}; expected bits 4, 8, 16 or 32': {"embed.weight": {"bits": 5}},
    'embed.weight is "4"; expected bits 4, 8, 16 or 32': {"embed.weight": "4"},
    'embed.weight is {"bits": 4, "block_size": 48}; expected block_size 16, 32, 64, 128 and': {
        "embed.weight": {"bits": 4, "block_size": 48}
    },
    "embed.weight has blocks; expected bits, block_size, symmetric": {
        "embed.weight": {"bits": 4, "block_size": 32, "blocks": 1}
    },
}


@pytest.mark.parametrize(("message", "content"), WRONG.items(), ids=range(len(WRONG)))
def test_a_wrong_plan_is_refused_by_name(tmp_path, message, content):
    path = tmp_path / "plan.json"
    whole = (
        content if isinstance(content, str) else json.dumps({"plan_version": 1, "tensors": content})
    )
    path.write_text(whole)

    with pytest.raises(OptionError) as refused:
        read_plan(path, SHAPES, "float32")

    assert str(refused.value).startswith(f"--plan {path}")
    assert message in str(refused.value)


def test_an_absent_plan_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"not found; an export writes one as plan\.json"):
        read_plan(tmp_path / "no.json", SHAPES, "float32")
