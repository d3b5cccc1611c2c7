"""Conversations: whatever was done to one, it goes on as a new one with the same text would."""

import contextlib
import io
import json
import os
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.tiny_bundle import TinyBundle, vocab_size

from wiola_runtime import (
    Cancellation,
    Cancelled,
    CapacityError,
    GenerationError,
    SessionError,
    WiolaRuntimeError,
    load,
    row,
)

CONTEXT = 96
LAYOUTS = {
    "shared": TinyBundle(context_length=CONTEXT),
    "growing": TinyBundle(cache="growing", context_length=CONTEXT),
}
IDS = np.random.default_rng(3).integers(5, vocab_size(), 400).tolist()


@pytest.fixture(scope="module", params=LAYOUTS)
def bundle(request, tmp_path_factory):
    """Return (bundle, folder) of a layout of the cache."""
    folder = tmp_path_factory.mktemp("bundles") / request.param
    return LAYOUTS[request.param], LAYOUTS[request.param].write(folder)


@pytest.fixture
def model(bundle):
    with load(bundle[1]) as opened:
        yield opened


def expected_logprobs(bundle, token_ids):
    """Return what the oracle thinks of the token that follows a text, (V,)."""
    logits = bundle.oracle(token_ids)[-1]
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def assert_goes_on_as_new(bundle, conversation):
    """Make one token on a fork, and compare its chances with the oracle's for the whole text."""
    before = conversation.token_ids
    result = conversation.fork().generate(max_new_tokens=1, logprobs=20, temperature=0)
    scores = expected_logprobs(bundle, before or (1,))
    for token_id, logprob in result.logprobs[0].top:
        assert logprob == pytest.approx(scores[token_id], abs=1e-3)
    assert conversation.token_ids == before


class Conversations(RuleBasedStateMachine):
    """Random operations on sessions; each text is kept beside as a plain list."""

    layout = "shared"

    @initialize()
    def begin(self):
        self.bundle = LAYOUTS[self.layout]
        self.stack = contextlib.ExitStack()
        folder = self.stack.enter_context(temporary_folder())
        self.folder = folder
        self.model = self.stack.enter_context(load(self.bundle.write(folder / "bundle")))
        self.session, self.text = self.model.session(), []

    @rule(ids=st.lists(st.integers(5, 250), min_size=1, max_size=40))
    def append(self, ids):
        fits = len(self.text) + len(ids) < CONTEXT
        with contextlib.nullcontext() if fits else pytest.raises(CapacityError):
            self.session.append(ids)
            self.text += ids

    @rule(count=st.integers(0, 30), draft=st.sampled_from([0, 3]), seed=st.integers(0, 9))
    def reply(self, count, draft, seed):
        if len(self.text) >= CONTEXT:
            return
        result = self.session.generate(
            max_new_tokens=count, draft_tokens=draft, temperature=0.5, seed=seed
        )
        self.text = (self.text or [1]) + list(result.token_ids)

    @rule(pieces=st.integers(0, 4))
    def leave_a_stream(self, pieces):
        if len(self.text) >= CONTEXT:
            return
        stream = self.session.stream(max_new_tokens=20)
        for _, _ in zip(range(pieces), stream, strict=False):
            pass
        stream.close()
        self.text = list(self.session.token_ids)

    @rule(share=st.floats(0, 1))
    def rewind(self, share):
        kept = int(share * len(self.text))
        self.session.rewind(kept)
        del self.text[kept:]

    @rule()
    def fork(self):
        self.session = self.session.fork()

    @rule()
    def save_and_restore(self):
        self.session.save(self.folder / "session.npz")
        self.session = self.model.restore(self.folder / "session.npz")

    @precondition(lambda self: len(self.text) > 2)
    @rule(cut=st.integers(1, 90), ids=st.lists(st.integers(5, 250), min_size=1, max_size=5))
    def replace(self, cut, ids):
        self.text = [*self.text[:cut], *ids][: CONTEXT - 1]
        self.session.replace(self.text)

    @invariant()
    def goes_on_as_new(self):
        if not hasattr(self, "session"):
            return
        assert list(self.session.token_ids) == self.text
        assert self.session.context_left == CONTEXT - len(self.text)
        if len(self.text) < CONTEXT:
            assert_goes_on_as_new(self.bundle, self.session)

    def teardown(self):
        if hasattr(self, "stack"):
            self.stack.close()


@contextlib.contextmanager
def temporary_folder():
    import tempfile  # noqa: PLC0415  a state machine has no fixtures

    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


class GrowingConversations(Conversations):
    """The same with a cache that the graph returns anew at each call."""

    layout = "growing"


STEPS = settings(max_examples=15, stateful_step_count=12, deadline=None)
TestConversations = Conversations.TestCase
TestConversations.settings = STEPS
TestGrowingConversations = GrowingConversations.TestCase
TestGrowingConversations.settings = STEPS


@pytest.mark.parametrize("length", [0, 1, 64, 70, 79, 80])
def test_a_rewound_session_goes_on_as_a_new_one(bundle, model, length, monkeypatch):
    """From a chunk's middle, from between two copies of the sums, and from the beginning."""
    monkeypatch.setattr(row, "SUMS_EVERY", 8)
    conversation = model.session()
    conversation.append(IDS[:40])
    conversation.generate(max_new_tokens=40)
    assert conversation.token_count == 80

    conversation.rewind(length)

    assert_goes_on_as_new(bundle[0], conversation)


def test_what_is_there_is_not_computed_again(model):
    conversation = model.session()
    first = conversation.generate(IDS[:40], max_new_tokens=10)
    second = conversation.generate(IDS[40:45], max_new_tokens=2)
    kept = conversation.replace([*conversation.token_ids[:30], 9])
    third = conversation.generate(max_new_tokens=2)

    assert first.reused_tokens == 0
    assert (second.prompt_tokens, second.reused_tokens) == (55, 49)
    assert kept == 30
    assert third.reused_tokens <= 30


def test_sums_are_copied_every_so_often_and_no_more(model):
    """The price of going back: one copy a chunk, and one in 64 tokens of a reply."""
    conversation = model.session()
    conversation.generate(IDS[:10], max_new_tokens=85, draft_tokens=2)

    positions = [at for at, _ in conversation._row.copies]

    assert len(positions) <= 4


def test_the_reply_after_a_fork_is_that_of_the_session_itself(model):
    conversation = model.session()
    conversation.append(IDS[:20])
    fork = conversation.fork()

    one, other = (s.generate(max_new_tokens=20) for s in (conversation, fork))

    assert one.token_ids == other.token_ids
    conversation.append(IDS[:3])
    assert fork.token_count == 40


def test_a_text_too_long_is_refused_and_nothing_added(model):
    conversation = model.session()
    conversation.append(IDS[:50])

    with pytest.raises(
        CapacityError, match=r"^the conversation has 96 tokens, the context 96; rew"
    ):
        conversation.append(IDS[:46])

    assert conversation.token_count == 50
    assert model.session(overflow="truncate").token_count == 0
    with pytest.raises(GenerationError, match=r"^overflow is 'drop'; expected 'error' or 'trunca"):
        model.session(overflow="drop")


def test_old_turns_are_forgotten_whole_and_the_first_token_stays(bundle, model):
    conversation = model.session(overflow="truncate")
    conversation.append([1, *IDS[:39]])
    conversation.generate(max_new_tokens=5)
    conversation.append(IDS[40:70])

    conversation.generate(IDS[70:100], max_new_tokens=0)

    assert conversation.token_ids == (1, *IDS[40:100])
    assert_goes_on_as_new(bundle[0], conversation)


@pytest.mark.parametrize(("wanted", "kept"), [(7, 70), (20, 70), (24, 70), (96, 70), (6, 90)])
def test_old_turns_are_forgotten_until_a_reply_has_room(model, wanted, kept):
    """A quarter of the context is room enough, however long a reply may become."""
    conversation = model.session(overflow="truncate")
    for turn in (IDS[:20], IDS[20:50], IDS[50:90]):
        conversation.append(turn)

    result = conversation.generate(max_new_tokens=wanted)

    assert result.prompt_tokens == kept
    assert len(result.token_ids) == min(wanted, 96 - kept)


def test_a_turn_alone_stays_however_little_room_it_leaves(model):
    result = model.session(overflow="truncate").generate(IDS[:90], max_new_tokens=24)

    assert (result.prompt_tokens, len(result.token_ids)) == (90, 6)


def test_a_last_turn_that_is_too_long_alone_is_refused(model):
    conversation = model.session(overflow="truncate")
    with pytest.raises(CapacityError, match="the prompt has 96 tokens, the context 96"):
        conversation.append(IDS[:96])
    conversation.append([1, *IDS[:20]])
    with pytest.raises(CapacityError, match="the prompt has 96 tokens, the context 96"):
        conversation.generate(IDS[:95], max_new_tokens=1)


def test_a_full_context_ends_the_reply_and_then_refuses(model):
    conversation = model.session()
    result = conversation.generate(IDS[:90], max_new_tokens=50)

    assert (len(result.token_ids), result.finish_reason) == (6, "context")
    with pytest.raises(CapacityError, match="the conversation has 96 tokens, the context 96; rew"):
        conversation.generate()


def test_an_empty_session_begins_with_the_first_token(bundle, model):
    conversation = model.session()
    conversation.generate(max_new_tokens=0)

    assert conversation.token_ids == (1,)
    assert_goes_on_as_new(bundle[0], conversation)


# In use


def test_a_session_in_use_is_refused_everywhere(model, tmp_path):
    conversation = model.session()
    stream = conversation.stream(IDS[:5], max_new_tokens=9)
    next(stream)
    refused = [
        lambda: conversation.append(IDS[:3]),
        lambda: conversation.replace(IDS[:3]),
        lambda: conversation.rewind(1),
        conversation.fork,
        lambda: conversation.save(tmp_path / "s.npz"),
        conversation.generate,
    ]

    for call in refused:
        with pytest.raises(SessionError, match=r"^the session is in use by another thread or a "):
            call()

    stream.close()
    conversation.append(IDS[:3])


def test_two_threads_on_one_session_are_told(model):
    conversation, errors, go = model.session(), [], threading.Event()

    def first_piece(_):
        go.set()
        assert told.wait(10)

    told = threading.Event()
    worker = threading.Thread(
        target=lambda: conversation.generate(IDS[:5], max_new_tokens=5, on_text=first_piece)
    )
    worker.start()
    assert go.wait(10)
    try:
        conversation.append(IDS[:3])
    except SessionError as error:
        errors.append(error)
    told.set()
    worker.join(10)

    assert len(errors) == 1
    assert not worker.is_alive()


def test_eight_threads_with_sessions_of_their_own_get_what_they_get_alone(model):
    def replies(index):
        conversation = model.session()
        return [
            conversation.generate(IDS[index * 9 : index * 9 + 9], max_new_tokens=6).token_ids
            for _ in range(3)
        ]

    alone = [replies(index) for index in range(8)]
    found = [None] * 8

    def work(index):
        found[index] = replies(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == alone


def test_a_closed_model_says_so(bundle):
    with load(bundle[1]) as opened:
        conversation = opened.session()
        conversation.append(IDS[:3])

    with pytest.raises(WiolaRuntimeError, match=r"^model tiny is closed; load it again$"):
        conversation.generate()


# Cancelling


def test_a_cancelled_reply_keeps_what_is_there(bundle, model):
    conversation, cancel, texts = model.session(), Cancellation(), []

    def stop_after_three(text):
        texts.append(text)
        if len(texts) == 3:
            cancel.cancel()

    result = conversation.generate(
        IDS[:10], max_new_tokens=50, cancel=cancel, on_text=stop_after_three
    )

    assert result.finish_reason == "cancelled"
    assert 0 < len(result.token_ids) < 50
    assert result.text.startswith("".join(texts))
    assert conversation.token_ids == (*IDS[:10], *result.token_ids)
    assert_goes_on_as_new(bundle[0], conversation)


def test_a_prefill_stops_at_the_next_chunk(bundle, model, monkeypatch):
    cancel = Cancellation()
    conversation = model.session()
    conversation.append(IDS[:90])
    fed = []
    conversation._row = row.Row(model._engine.graph, chunk_tokens=20)
    plain = conversation._row._feed

    def feed(token_ids, wanted):
        fed.append(len(token_ids))
        if len(fed) == 2:
            cancel.cancel()
        return plain(token_ids, wanted)

    monkeypatch.setattr(conversation._row, "_feed", feed)

    result = conversation.generate(cancel=cancel)

    assert (result.finish_reason, result.token_ids, fed) == ("cancelled", (), [20, 20])
    assert conversation.generate(max_new_tokens=1).reused_tokens == 40
    assert_goes_on_as_new(bundle[0], conversation)


def test_a_callback_may_end_a_reply_or_fail(bundle, model):
    conversation = model.session()

    def cancelled(_):
        raise Cancelled

    def broken(_):
        raise ZeroDivisionError

    result = conversation.generate(IDS[:10], max_new_tokens=9, on_text=cancelled)
    assert result.finish_reason == "cancelled"
    with pytest.raises(ZeroDivisionError):
        conversation.generate(max_new_tokens=9, on_text=broken)

    assert conversation.token_count > 10 + len(result.token_ids)
    assert_goes_on_as_new(bundle[0], conversation)


def test_a_stream_that_is_dropped_frees_the_session(bundle, model):
    conversation = model.session()
    stream = conversation.stream(IDS[:10], max_new_tokens=30)
    next(stream)
    del stream

    assert_goes_on_as_new(bundle[0], conversation)


def test_what_is_raised_in_the_middle_of_a_call_does_no_harm(bundle, model, monkeypatch):
    """As Ctrl-C is, after the graph has run and before that is noted."""
    conversation, graph = model.session(), model._engine.graph
    conversation.generate(IDS[:10], max_new_tokens=3)
    run = graph.run

    def interrupted(*arguments):
        run(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(graph, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        conversation.generate(IDS[10:15], max_new_tokens=3)
    monkeypatch.setattr(graph, "run", run)

    assert_goes_on_as_new(bundle[0], conversation)
    conversation.generate(max_new_tokens=2)
    assert_goes_on_as_new(bundle[0], conversation)


# Guessing ahead


@pytest.mark.parametrize("draft", [1, 3, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_guesses_change_no_reply(model, draft, temperature):
    repeated = IDS[:12] * 4
    config = {"temperature": temperature, "seed": 5 if temperature else None}

    plain = model.generate(repeated, max_new_tokens=40, **config)
    guessed = model.generate(repeated, max_new_tokens=40, draft_tokens=draft, **config)

    assert guessed.token_ids == plain.token_ids
    assert plain.guesses is None
    assert guessed.guesses.guessed >= guessed.guesses.accepted


def test_a_right_guess_saves_its_pass(tmp_path):
    """A head without weights makes every token likely alike, so token 0 follows token 0."""
    bundle = ConstantBundle(context_length=CONTEXT)
    with load(bundle.write(tmp_path / "b")) as opened:
        result = opened.generate([0, 0, 0, 0], max_new_tokens=41, draft_tokens=8)

    assert result.token_ids == (0,) * 41
    assert result.guesses.accepted == result.guesses.guessed > 30
    assert result.guesses.passes <= 12


class ConstantBundle(TinyBundle):
    """Says token 0 whatever was said."""

    def weight_arrays(self):
        arrays = super().weight_arrays()
        arrays["head"] = np.zeros_like(arrays["head"])
        return arrays


# In a file


def test_a_saved_session_is_tied_to_its_bundle(model, tmp_path):
    path = tmp_path / "session.npz"
    conversation = model.session(overflow="truncate")
    conversation.generate(IDS[:30], max_new_tokens=5)
    conversation.save(path)
    other = TinyBundle(context_length=CONTEXT + 1)

    with load(other.write(tmp_path / "other")) as stranger:
        with pytest.raises(SessionError, match=r"belongs to another bundle \(.*…\), not to tiny"):
            stranger.restore(path)
    restored = model.restore(path)

    assert restored.token_ids == conversation.token_ids
    assert restored.generate(max_new_tokens=3).reused_tokens >= 34
    assert restored._overflow == "truncate"
    assert [p.name for p in tmp_path.glob("*.partial")] == []


def test_a_session_that_was_never_fed_can_be_saved(bundle, model, tmp_path):
    conversation = model.session()
    conversation.append(IDS[:7])
    conversation.save(tmp_path / "s.npz")

    restored = model.restore(tmp_path / "s.npz")

    assert restored.token_ids == tuple(IDS[:7])
    assert_goes_on_as_new(bundle[0], restored)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not a session", None])
def test_a_file_that_is_no_session_is_refused(model, tmp_path, content):
    path = tmp_path / "s.npz"
    if content is None:
        np.savez(path, other=np.zeros(3))
    else:
        path.write_bytes(content)

    damage = ", or damaged" if content is None else "; `Session.save` writes such a file$"
    with pytest.raises(SessionError, match=rf"^{path} is no saved session{damage}"):
        model.restore(path)


def test_a_damaged_or_missing_file_is_refused(model, tmp_path):
    path = tmp_path / "s.npz"
    conversation = model.session()
    conversation.generate(IDS[:30], max_new_tokens=2)
    conversation.save(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])

    with pytest.raises(SessionError, match="is no saved session"):
        model.restore(path)
    with pytest.raises(SessionError, match=r"not found; `Session\.save` writes such a file"):
        model.restore(tmp_path / "absent.npz")
    with pytest.raises(SessionError, match="cannot be written"):
        conversation.save(tmp_path / "no" / "such" / "folder.npz")


def test_a_file_of_another_format_or_with_states_missing_is_refused(model, tmp_path):
    path = tmp_path / "s.npz"
    conversation = model.session()
    conversation.generate(IDS[:30], max_new_tokens=2)
    conversation.save(path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    header = json.loads(arrays["header"].tobytes())

    np.savez(path, **{name: array for name, array in arrays.items() if name != "state_1"})
    with pytest.raises(SessionError, match=r"is damaged: text and state do not fit each other$"):
        model.restore(path)
    later = np.frombuffer(json.dumps(header | {"format_version": 2}).encode(), np.uint8)
    np.savez(path, **(arrays | {"header": later}))
    with pytest.raises(SessionError, match=r"has format 2; this runtime reads 1$"):
        model.restore(path)


@pytest.mark.parametrize(
    "change",
    [
        {"header": {"turns": 5}}, {"header": {"turns": [-5, 1000]}}, {"header": {"overflow": "x"}},
        {"header": {"turns": [0, 9, 3]}}, {"state_2": np.zeros((1, 32), ">f4")},
        {"token_ids": np.asarray([-1])}, {"token_ids": np.asarray([[3]])},
        {"token_ids": np.asarray([1.5])}, {"token_ids": np.asarray([10_000])},
        {"fed_ids": np.arange(5, 9)}, {"state_0": np.zeros((1, 1, 2, 16), np.float32)},
        {"state_2": np.zeros((1, 5), np.float32)}, {"state_2": np.zeros((1, 16))},
    ],
    ids=str,
)  # fmt: skip
def test_a_file_whose_parts_do_not_fit_is_refused(model, tmp_path, change):
    path = tmp_path / "s.npz"
    conversation = model.session()
    conversation.generate(IDS[:30], max_new_tokens=2)
    conversation.save(path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    if "header" in change:
        header = json.loads(arrays["header"].tobytes()) | change["header"]
        change = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
    np.savez(path, **(arrays | change))

    with pytest.raises(SessionError, match="is damaged: text and state do not fit each other"):
        model.restore(path)


def _claiming(shape, written=b"", kind="<f4"):
    """Return the entry of an array that says of itself what may not be so."""
    file = io.BytesIO()
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + written


@pytest.mark.parametrize(
    ("name", "entry", "packed", "message"),
    [
        ("state_0", _claiming((10**12,)), False, "state_0 has 4000000000000 bytes; expected "),
        ("state_0", _claiming((-1, 4)), False, "state_0 has -16 bytes; expected "),
        ("state_2", _claiming((1, 32)), False, "buffer is too small"),
        ("state_2", _claiming((1, 32), bytes(128)), True, "state_2 is compressed"),
        ("state_2", _claiming((1, 16), bytes(128), "|O"), False, "state_2 has "),
        ("header", _claiming((1 << 20,)), False, "header has 4194304 bytes; expected 1048576 at "),
        ("other", _claiming((1,), bytes(4)), False, "'other'"),
        ("header", b"\x93NUMPY\x03\x00", False, "header is of another version"),
    ],
)
def test_what_a_file_claims_is_not_believed(model, tmp_path, name, entry, packed, message):
    """A few bytes cannot make a restore take more memory than a full context does."""
    path = tmp_path / "s.npz"
    conversation = model.session()
    conversation.generate(IDS[:30], max_new_tokens=2)
    conversation.save(path)
    with zipfile.ZipFile(path) as file:
        entries = {one: file.read(one) for one in file.namelist()} | {f"{name}.npy": entry}
    with zipfile.ZipFile(path, "w") as file:
        for one, content in entries.items():
            kind = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
            file.writestr(one, content, kind if one == f"{name}.npy" else zipfile.ZIP_STORED)

    with pytest.raises(SessionError, match=f"is no saved session, or damaged .{message}"):
        model.restore(path)


def test_a_pipe_is_no_saved_session(model, tmp_path):
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(SessionError, match=r"is no saved session; `Session\.save` writes such"):
        model.restore(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["", ".", "a\0b", "x" * 300])
def test_what_is_no_file_name_is_refused(model, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SessionError):
        model.session().save(name)

    assert list(tmp_path.iterdir()) == []


def test_what_is_no_name_at_all_is_refused(model):
    for call in (model.session().save, model.restore):
        with pytest.raises(SessionError, match=r"^path is None; expected the path of a file$"):
            call(None)


def test_a_disk_that_fills_up_leaves_nothing_behind(model, tmp_path, monkeypatch):
    conversation = model.session()
    conversation.generate(IDS[:30], max_new_tokens=2)

    def full(file, **_):
        file.write(b"begun")
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(SessionError, match=r"cannot be written .No space left on device"):
        conversation.save(tmp_path / "s.npz")

    assert list(tmp_path.iterdir()) == []


def test_what_is_no_regular_file_is_left_alone(model, tmp_path):
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(SessionError, match="is no file; save under another name"):
        model.session().save(tmp_path / "pipe")

    assert (tmp_path / "pipe").is_fifo()


def test_a_refused_call_changes_nothing(model):
    for conversation in (model.session(), model.session(overflow="truncate")):
        conversation.append(IDS[:50])
        conversation.append(IDS[50:90])
        before = conversation._turns.copy()

        with pytest.raises(GenerationError, match="logit_bias names token"):
            conversation.generate(IDS[:4], logit_bias={10**6: 1.0})
        with pytest.raises(CapacityError):
            conversation.generate(IDS[:99])

        assert conversation._turns == before


def test_a_turn_that_fits_only_without_the_first_token_is_refused(model):
    conversation = model.session(overflow="truncate")
    conversation.append([1, 20, 21])

    with pytest.raises(CapacityError, match="the prompt has 96 tokens"):
        conversation.append(IDS[:95])
    conversation.append(IDS[:94])

    assert conversation.generate(max_new_tokens=1).prompt_tokens == 95


def test_a_stream_of_a_text_that_was_changed_since_is_refused(model):
    """It continues what was there when it was asked for, or nothing."""
    conversation = model.session()
    stream = conversation.stream(IDS[:5], max_new_tokens=4)
    conversation.rewind(0)

    with pytest.raises(SessionError, match=r"^the text was changed before its reply began; call "):
        next(stream)

    assert conversation.token_ids == ()
    assert conversation.generate(IDS[:5], max_new_tokens=4).prompt_tokens == 5


@pytest.mark.parametrize("n_tokens", [-1, 31, 1.5, "a"])
def test_a_session_goes_back_to_where_it_was_only(model, n_tokens):
    conversation = model.session()
    conversation.append(IDS[:30])

    with pytest.raises(GenerationError, match=rf"^n_tokens is {n_tokens}; expected 0 to 30, all "):
        conversation.rewind(n_tokens)


def test_the_text_of_a_session_is_its_tokens_without_special_ones(model):
    conversation = model.session()
    conversation.generate("It is a truth", max_new_tokens=0)
    conversation.append([2])
    conversation.append(" universally")

    assert conversation.text == "It is a truth universally"
