"""Hidden states are the same wherever they are kept, and little of them is kept in memory.

Axes: W windows, B windows of a group, T tokens, d hidden size.
"""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wiola_export.calibrate.hidden import GROUP_WINDOWS, HiddenStates, TensorGroups, window_groups
from wiola_export.families.layerwise import Hidden

GROUP_BYTES = 2 * 3 * 4 * 4


def hidden(seed, carried):
    """Return a stream (2, 3, 4) and as many carried tensors."""
    generator = torch.Generator().manual_seed(seed)
    x, *carry = (torch.randn(2, 3, 4, generator=generator) for _ in range(1 + carried))
    return Hidden(x, tuple(carry))


def same(found, expected):
    assert torch.equal(found.x, expected.x)
    assert len(found.carry) == len(expected.carry)
    assert all(map(torch.equal, found.carry, expected.carry))


def in_memory(states):
    """Return the bytes of all groups that are tensors."""
    groups = [group for group in states._tensors._groups if isinstance(group, tuple)]
    return sum(tensor.nbytes for group in groups for tensor in group)


changes = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=12)


@given(limit=st.integers(0, 6 * GROUP_BYTES), changes=changes)
@settings(max_examples=60, deadline=None)
def test_states_in_files_are_those_in_memory(tmp_path_factory, limit, changes):
    """Whatever is replaced by whatever: layers carry on more and more, then less."""
    expected = [hidden(seed, 0) for seed in range(5)]
    states = HiddenStates(iter(expected), tmp_path_factory.mktemp("states"), limit)
    for seed, (index, carried) in enumerate(changes, start=10):
        expected[index] = states[index] = hidden(seed, carried)
        same(states[index], expected[index])

    assert len(states) == 5
    for found, one in zip(states, expected, strict=True):
        same(found, one)
    assert in_memory(states) <= limit


def test_a_state_in_a_file_leaves_memory_and_one_in_memory_needs_no_file(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    groups = [hidden(seed, 1) for seed in range(3)]

    kept = HiddenStates(groups, inside, 6 * GROUP_BYTES)
    spilled = HiddenStates(groups, outside, 0)

    assert in_memory(kept) == 6 * GROUP_BYTES
    assert in_memory(spilled) == 0
    assert list(inside.iterdir()) == []
    assert sorted(path.name for path in outside.iterdir()) == [
        "group-0.npy", "group-1.npy", "group-2.npy",
    ]  # fmt: skip


def test_a_state_that_was_read_is_the_readers_own(tmp_path):
    states = HiddenStates([hidden(0, 0)], tmp_path, 0)

    states[0].x.zero_()

    same(states[0], hidden(0, 0))


def test_a_view_is_kept_as_what_it_shows(tmp_path):
    """A transposed tensor lies otherwise in memory."""
    turned = Hidden(hidden(0, 0).x.transpose(0, 2))

    same(HiddenStates([turned], tmp_path, 0)[0], turned)


def test_groups_that_are_let_go_leave_neither_memory_nor_files(tmp_path):
    """One group fits in memory, the others lie in files; the folder can be used again."""
    groups = TensorGroups(tmp_path / "groups", GROUP_BYTES)
    for seed in range(3):
        groups.append((hidden(seed, 0).x,))
    assert len(list((tmp_path / "groups").iterdir())) == 2

    groups.clear()

    assert len(groups) == 0
    assert list(groups) == []
    assert list((tmp_path / "groups").iterdir()) == []
    groups.append((hidden(7, 0).x,))
    assert torch.equal(groups[0][0], hidden(7, 0).x)


@given(windows=st.integers(1, 50), context=st.integers(1, 5))
def test_groups_are_all_windows_in_order_and_about_equal(windows, context):
    """A last group of a single window would be as slow as a whole one."""
    ids = np.arange(windows * context).reshape(windows, context)

    groups = window_groups(ids)

    sizes = {len(group) for group in groups}
    assert torch.equal(torch.cat(groups), torch.from_numpy(ids))
    assert max(sizes) <= GROUP_WINDOWS
    assert max(sizes) - min(sizes) <= 1
    assert len(groups) == -(-windows // GROUP_WINDOWS)
