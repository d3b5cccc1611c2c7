"""One thread for all answers: each is what it is alone, whoever comes, leaves or fails."""

import contextlib
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.serve import slowed, until
from support.tiny_bundle import TinyBundle, vocab_size

from wiola_runtime import BundleError, load
from wiola_runtime.batch import Batch, Member
from wiola_runtime.reply import Reply
from wiola_runtime.row import Row, Rows, RowsApart
from wiola_serve.job import Job
from wiola_serve.kept import Kept
from wiola_serve.limits import Limits
from wiola_serve.metrics import Metrics
from wiola_serve.refusal import Refusal
from wiola_serve.scheduler import READ_TOKENS, Scheduler
from wiola_serve.waiting import Waiting

CONTEXT = 400
IDS = np.random.default_rng(3).integers(5, vocab_size(), 400).tolist()
LAYOUTS = pytest.mark.parametrize("cache", ["shared", "growing"])


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    with contextlib.ExitStack() as stack:
        yield {
            cache: stack.enter_context(
                load(
                    TinyBundle(cache=cache, context_length=CONTEXT, eos_ids=(7, 30)).write(
                        tmp_path_factory.mktemp("bundle") / cache
                    )
                )
            )
            for cache in ("shared", "growing")
        }


@contextlib.contextmanager
def scheduling(model, **limits):
    scheduler = Scheduler(model.engine, Limits(**limits), Metrics())
    scheduler.start()
    try:
        yield scheduler
    finally:
        scheduler.stop()


class Asked:
    """A job and all its news."""

    def __init__(self, model, ids, client="a", **changes):
        options = {name: changes.pop(name) for name in ("streams", "keeps") if name in changes}
        config = model.engine.config(None, {"max_new_tokens": 20, **changes})
        self.news = []
        self.job = Job(client, Reply(model.engine, ids, config), self.news.append, **options)
        self.alone = lambda: model.generate(ids, config)

    @property
    def has_ended(self):
        return bool(self.news) and (self.news[-1].result or self.news[-1].failure)

    @property
    def result(self):
        until(lambda: self.has_ended)
        assert self.news[-1].failure is None, self.news[-1].failure
        return self.news[-1].result


def same(asked):
    result, alone = asked.result, asked.alone()
    assert (result.token_ids, result.text) == (alone.token_ids, alone.text)
    assert result.finish_reason == alone.finish_reason
    assert result.seed == alone.seed


@LAYOUTS
def test_answers_are_what_they_are_alone(models, cache):
    """Of all lengths, chunked ones among them, drawn and greedy, with penalties and stops."""
    lengths = [1, 3, 50, READ_TOKENS, READ_TOKENS + 1, 2 * READ_TOKENS + 30]
    choices = [{}, {"temperature": 0.8, "seed": 4, "repetition_penalty": 1.2}, {"stop": "e"}]
    asked = [
        Asked(models[cache], IDS[at : at + length], **choice)
        for at, length in enumerate(lengths)
        for choice in choices
    ]

    with scheduling(models[cache], rows=5) as scheduler:
        scheduler.submit([one.job for one in asked])
        for one in asked:
            same(one)

        assert (scheduler.queue_length, scheduler.active_rows) == (0, 0)


class Arrivals:
    """Rows that join at any time, as a hypothesis strategy."""

    STRATEGY = st.lists(
        st.tuples(
            st.integers(0, 6),  # turns until it arrives
            st.integers(1, 60),  # length
            st.integers(0, 12),  # tokens
            st.integers(0, 3),  # a seed, where 0 is greedy
            st.booleans(),  # whether it is dropped half way
        ),
        min_size=1,
        max_size=6,
    )


@LAYOUTS
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(arrivals=Arrivals.STRATEGY)
def test_a_batch_takes_whoever_comes_and_lets_go_whoever_leaves(models, cache, arrivals):
    model = models[cache]
    engine = model.engine
    batch = Batch(Rows(engine.graph) if cache == "shared" else RowsApart(), chunk_tokens=16)
    members, configs = [], []
    for turns, length, tokens, seed, leaves in arrivals:
        for _ in range(turns):
            batch.read()
            batch.decode()
        draw = {"temperature": 0.9, "seed": seed} if seed else {}
        config = engine.config(None, {"max_new_tokens": tokens, **draw})
        ids = IDS[len(members) : len(members) + length]
        member = Member(Reply(engine, ids, config), Row(engine.graph))
        batch.add(member)
        members.append(member)
        configs.append((ids, config))
        if leaves:
            batch.drop(members[-2:-1])
    while batch.members:
        batch.read()
        batch.decode()

    for at, (member, (ids, config)) in enumerate(zip(members, configs, strict=True)):
        alone = model.generate(ids, config)
        dropped = at + 1 < len(arrivals) and arrivals[at + 1][4]
        if dropped:  # what was there by then
            found = tuple(member.reply.token_ids)
            assert found == alone.token_ids[: len(found)]
        else:
            assert member.result().token_ids == alone.token_ids
            assert member.text == alone.text


def test_a_long_prompt_does_not_hold_up_the_others(models, monkeypatch):
    """Between two of its chunks, every other answer gets a token."""
    model = models["shared"]
    shapes = []
    run = model.engine.graph.run
    monkeypatch.setattr(
        model.engine.graph,
        "run",
        lambda state, ids, *rest: shapes.append(ids.shape) or run(state, ids, *rest),
    )
    short = Asked(model, IDS[:3], max_new_tokens=300, ignore_eos=True)
    with scheduling(model) as scheduler:
        scheduler.submit([short.job])
        until(lambda: len(shapes) > 3)
        scheduler.submit([Asked(model, IDS[: 3 * READ_TOKENS], max_new_tokens=2).job])
        short.result  # noqa: B018

    chunks = [at for at, shape in enumerate(shapes) if shape == (1, READ_TOKENS)]
    assert len(chunks) == 3
    assert [shapes[at + 1] for at in chunks[:2]] == [(1, 1)] * 2
    assert (2, 1) in shapes


def test_a_stream_is_told_token_by_token_and_in_whole_characters(models):
    asked = Asked(models["shared"], IDS[:9], streams=True, logprobs=1, ignore_eos=True)
    with scheduling(models["shared"]) as scheduler:
        scheduler.submit([asked.job])
        result = asked.result

    assert len(asked.news) > 2
    assert "".join(one.text for one in asked.news) == result.text
    assert [one for news in asked.news for one in news.logprobs] == list(result.logprobs)


@LAYOUTS
def test_who_is_cancelled_leaves_within_a_token_and_the_queue_at_once(models, cache, monkeypatch):
    model = models[cache]
    monkeypatch.setattr(model.engine.graph, "run", slowed(model.engine.graph, 0.005))
    endless = [Asked(model, IDS[:4], max_new_tokens=390, ignore_eos=True) for _ in range(4)]
    with scheduling(model, rows=2) as scheduler:
        scheduler.submit([one.job for one in endless])
        until(lambda: scheduler.active_rows == 2 and scheduler.queue_length == 2)
        scheduler.cancel([endless[3].job])
        assert scheduler.queue_length == 1
        scheduler.cancel([endless[0].job])
        scheduler.cancel([endless[0].job])  # which changes nothing
        until(lambda: scheduler.queue_length == 0)
        assert scheduler.active_rows == 2
        until(lambda: len(endless[2].job.reply.token_ids) > 1)
        made = len(endless[0].job.reply.token_ids)
        scheduler.cancel([endless[1].job, endless[2].job, endless[0].job])
        until(lambda: scheduler.active_rows == 0)
        page = scheduler._metrics.page().decode()

    assert len(endless[0].job.reply.token_ids) == made < 390
    assert [one.news for one in endless] == [[]] * 4
    assert 'wiola_answers_total{ended_by="cancelled"} 3.0' in page


def test_there_is_an_end_to_the_queue(models, monkeypatch):
    model = models["shared"]
    monkeypatch.setattr(model.engine.graph, "run", slowed(model.engine.graph, 0.01))
    with scheduling(model, rows=1, queue=2) as scheduler:
        with pytest.raises(Refusal, match="0 prompts wait already, at most 2 may; send"):
            scheduler.submit([Asked(model, IDS[:4]).job for _ in range(4)])
        scheduler.submit([Asked(model, IDS[:4], max_new_tokens=300).job for _ in range(3)])
        until(lambda: scheduler.active_rows == 1)
        with pytest.raises(Refusal, match="2 prompts wait already, at most 2 may") as refused:
            scheduler.submit([Asked(model, IDS[:4]).job])
    assert refused.value.headers == {"Retry-After": "1"}


def test_whoever_is_there_when_it_stops_is_told(models, monkeypatch):
    model = models["shared"]
    monkeypatch.setattr(model.engine.graph, "run", slowed(model.engine.graph, 0.01))
    asked = [Asked(model, IDS[:4], max_new_tokens=300, ignore_eos=True) for _ in range(3)]
    with scheduling(model, rows=1) as scheduler:
        scheduler.submit([one.job for one in asked])
        until(lambda: scheduler.active_rows == 1)

    assert [str(one.news[-1].failure) for one in asked] == [
        "the server is stopping; send the request again when it is back"
    ] * 3
    assert scheduler.status != "ok"
    with pytest.raises(Refusal, match="the server is stopping"):
        scheduler.submit([asked[0].job])
    Scheduler(model.engine, Limits(), Metrics()).stop()  # which was never started


def test_a_row_that_fails_leaves_the_others_alone(models):
    model = models["shared"]
    bad, good = Asked(model, IDS[:4], ignore_eos=True), Asked(model, IDS[:9], ignore_eos=True)
    pick = bad.job.reply.pick

    def failing(logits):
        if len(bad.job.reply.token_ids) == 5:
            raise BundleError("the graph returned a logit of nan")
        return pick(logits)

    bad.job.reply._choose = failing
    with scheduling(model) as scheduler:
        scheduler.submit([bad.job, good.job])
        same(good)
        until(lambda: bad.has_ended)

    failure = bad.news[-1].failure
    assert (failure.status, str(failure)) == (500, "the graph returned a logit of nan")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_is_no_silence(models, monkeypatch):
    """The thread ends with a traceback, and everyone who waits is told."""
    model = models["shared"]
    seen = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    monkeypatch.setattr(Scheduler, "_turn", lambda _: 1 / 0)
    asked = [Asked(model, IDS[:4]) for _ in range(3)]
    with scheduling(model, rows=1) as scheduler:
        scheduler.submit([one.job for one in asked])
        until(lambda: all(one.has_ended for one in asked))
        until(lambda: scheduler.status == "failed")
        with pytest.raises(Refusal):
            scheduler.submit([asked[0].job])

    assert {str(one.news[-1].failure) for one in asked} == {"the server has failed; see its log"}
    assert [args.exc_type for args in seen] == [ZeroDivisionError]


def test_no_token_is_made_where_none_is_wanted(models):
    asked = Asked(models["shared"], IDS[:4], max_new_tokens=0)
    with scheduling(models["shared"]) as scheduler:
        scheduler.submit([asked.job])
        assert asked.result.token_ids == ()
        assert asked.result.finish_reason == "length"


@LAYOUTS
def test_the_next_turn_of_a_chat_computes_what_is_new(models, cache):
    model = models[cache]
    first = Asked(model, IDS[:100], keeps=True, ignore_eos=True)
    with scheduling(model) as scheduler:
        beside = Asked(model, IDS[:7], max_new_tokens=200, ignore_eos=True)
        scheduler.submit([beside.job, first.job])
        said = first.result.token_ids
        text = [*IDS[:100], *said, *IDS[200:230]]
        second = Asked(model, text, keeps=True)
        stranger = Asked(model, text, client="b", keeps=True)
        scheduler.submit([second.job, stranger.job])
        same(second)
        same(stranger)
        # The last token of an answer is picked and never fed.
        assert second.result.reused_tokens == 100 + len(said) - 1
        assert stranger.result.reused_tokens == 0
        again = Asked(model, text[:105], keeps=True)
        scheduler.submit([again.job])
        same(again)
        assert 100 <= again.result.reused_tokens <= 104


def rows_of(model, *texts):
    rows = []
    for text in texts:
        row = Row(model.engine.graph)
        row.step(text)
        rows.append(row)
    return rows


def test_what_is_kept_is_bounded_and_what_was_used_last_stays_longest(models):
    kept = Kept(2)
    one, longer, other, third = rows_of(models["shared"], IDS[:30], IDS[:50], IDS[60:90], IDS[99:])

    kept.keep("a", one)
    kept.keep("a", longer)  # of the same text
    assert len(kept) == 1
    kept.keep("a", other)
    assert kept.find("a", IDS[:60]).length == 50
    kept.keep("a", third)  # takes the place of the one that was not asked for
    assert kept.find("a", IDS[60:99]) is None
    assert kept.find("a", IDS[:15]) is None  # too little to be worth it
    assert kept.find("b", IDS[:60]) is None
    assert len(kept) == 2


def test_nothing_is_kept_where_nothing_may_be(models):
    kept = Kept(0)
    kept.keep("a", rows_of(models["shared"], IDS[:30])[0])
    assert len(kept) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=20))
def test_clients_take_turns_and_each_is_served_in_its_order(pushed):
    waiting = Waiting()
    for at, (client, _) in enumerate(pushed):
        waiting.push(client, (client, at))
    gone = [(client, at) for at, (client, fate) in enumerate(pushed) if fate == 0]
    for entry in [*gone, *gone]:
        waiting.remove(entry)
    left = [(c, at) for at, (c, fate) in enumerate(pushed) if fate]
    assert len(waiting) == len(left)

    served = [waiting.pop() for _ in left]

    assert sorted(served) == sorted(left)
    for client in "abc":
        mine = [entry for entry in left if entry[0] == client]
        assert [entry for entry in served if entry[0] == client] == mine
        # Before a client's second prompt, everyone who waits has had a first one.
        for other in {c for c, _ in left} - {client}:
            first = next(i for i, entry in enumerate(served) if entry[0] == other)
            assert first <= len({c for c, _ in left}) - 1
