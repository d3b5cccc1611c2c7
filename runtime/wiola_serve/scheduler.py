"""One thread owns the graph; all answers on their way are decoded together on it.

Between two passes a finished row leaves and waiting prompts take its place. A long prompt is read
in chunks, and the others get a token after each. What joining and leaving cost is said at
`wiola_runtime.row.Rows`: a copy of the rows that stay, at most two in a pass.
"""

import threading
from collections.abc import Sequence

from wiola_runtime import GenerationError
from wiola_runtime.batch import Batch, Member
from wiola_runtime.engine import Engine
from wiola_runtime.row import Row, Rows, RowsApart
from wiola_serve.job import Job
from wiola_serve.kept import Kept
from wiola_serve.limits import Limits
from wiola_serve.metrics import Metrics
from wiola_serve.refusal import FAILED, TOO_MANY, UNAVAILABLE, UNPROCESSABLE, Refusal
from wiola_serve.waiting import Waiting

# Tokens of a prompt that are read between two tokens of the others: enough for matrix products to
# be as fast as they get, and a pause that a reader hardly sees.
READ_TOKENS = 128
STOPPING = Refusal(
    "the server is stopping; send the request again when it is back",
    status=UNAVAILABLE, code="stopping",
)  # fmt: skip
BROKEN = Refusal("the server has failed; see its log", status=FAILED, code="failed")


class Scheduler:
    """The queue, and the thread that works on it.

    Args:
        engine: Of the opened bundle; nobody else may run its graph meanwhile.
        limits: How many rows and waiting prompts there may be.
        metrics: What is counted and timed.
    """

    def __init__(self, engine: Engine, limits: Limits, metrics: Metrics) -> None:
        self._engine = engine
        self._limits = limits
        self._metrics = metrics
        self.batches = engine.manifest.cache == "shared"
        rows: Rows[Member] | RowsApart[Member]
        rows = Rows(engine.graph) if self.batches else RowsApart()
        self._batch = Batch(rows, READ_TOKENS)
        self._kept = Kept(limits.conversations)
        self._waiting: Waiting[Job] = Waiting()
        self._active: list[Job] = []
        self._gone: list[Job] = []
        self._change = threading.Condition()
        self._ends_with: Refusal | None = None
        self._thread = threading.Thread(target=self._work, name="wiola-serve")
        metrics.watch("queue_length", "Prompts that wait for a row", lambda: self.queue_length)
        metrics.watch("active_rows", "Prompts that are worked on", lambda: self.active_rows)

    @property
    def queue_length(self) -> int:
        """Prompts that wait for a row."""
        with self._change:
            return len(self._waiting)

    @property
    def active_rows(self) -> int:
        """Prompts that are read or answered now."""
        return len(self._active)

    @property
    def status(self) -> str:
        """Why prompts are not taken: `stopping`, or `failed` after a bug; `ok` where they are."""
        return "ok" if self._ends_with is None else str(self._ends_with.code)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Put the prompts of one request in the queue, all or none.

        Raises:
            Refusal: There is no room for them, or the server is stopping.
        """
        with self._change:
            if self._ends_with is not None:
                raise self._ends_with
            there = self.active_rows + len(self._waiting)
            if there + len(jobs) > self._limits.rows + self._limits.queue:
                raise Refusal(
                    f"{len(self._waiting)} prompts wait already, at most {self._limits.queue} may; "
                    "send the request again later",
                    status=TOO_MANY,
                    code="queue_full",
                )
            for job in jobs:
                self._waiting.push(job.client, job)
            self._change.notify()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Forget some prompts: those that wait at once, those on their way within a token."""
        with self._change:
            for job in jobs:
                self._waiting.remove(job)
            self._gone += [job for job in jobs if job in self._active]

    def end(self) -> None:
        """Take no more prompts, and end all there are within a pass."""
        with self._change:
            self._ends_with = self._ends_with or STOPPING
            self._change.notify()

    def stop(self) -> None:
        """End, and wait for the thread."""
        self.end()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        """Decode until the end; a bug ends it too, and then nobody waits in vain."""
        try:
            while self._ready():
                self._turn()
        finally:
            self._end_all()

    def _ready(self) -> bool:
        """Wait for work, let rows leave and join; return whether there is any to do."""
        with self._change:
            self._change.wait_for(lambda: self._ends_with or self._active or len(self._waiting))
            gone = [job for job in self._active if job in self._gone]
            self._gone = []
            room = self._limits.rows - len(self._active) + len(gone)
            joining = [self._waiting.pop() for _ in range(min(room, len(self._waiting)))]
            self._active = [job for job in self._active if job not in gone] + joining
        self._batch.drop([job.member for job in gone if job.member is not None])
        for job in gone:
            self._metrics.answers.labels("cancelled").inc()
            self._metrics.generated_tokens.inc(len(job.reply.token_ids))
        for job in joining:
            self._begin(job)
        return self._ends_with is None

    def _begin(self, job: Job) -> None:
        ids = job.reply.prompt_ids
        row = self._kept.find(job.client, ids) if job.keeps else None
        member = job.begin(row or Row(self._engine.graph))
        self._batch.add(member)
        self._metrics.prompt_tokens.inc(len(ids))
        self._metrics.reused_tokens.inc(job.reply.reused_tokens)
        if member.has_ended:
            self._end(job)

    def _turn(self) -> None:
        """Read a chunk of a prompt, then make a token of every answer that has begun."""
        jobs = {job.member: job for job in self._active}
        for make in (self._batch.read, self._batch.decode):
            for member in make():
                self._note(jobs[member], member)

    def _note(self, job: Job, member: Member) -> None:
        """Take a new token of an answer into account."""
        seconds, is_first = job.lap()
        metrics = self._metrics
        (metrics.first_token_seconds if is_first else metrics.token_seconds).observe(seconds)
        if member.has_ended:
            self._end(job)
        else:
            job.tell()

    def _end(self, job: Job) -> None:
        member = job.member
        assert member is not None, "it has begun"
        self._active.remove(job)
        if job.keeps and member.row is not None and member.failure is None:
            self._kept.keep(job.client, member.row)
        member.row = None
        self._metrics.generated_tokens.inc(len(job.reply.token_ids))
        ended_by = "failure" if member.failure else job.reply.ended_by or "length"
        self._metrics.answers.labels(ended_by).inc()
        failure = None
        if member.failure is not None:
            asked = isinstance(member.failure, GenerationError)  # for what cannot be kept to
            status = UNPROCESSABLE if asked else FAILED
            failure = Refusal(str(member.failure), status=status, code="generation_failed")
        job.end(failure)

    def _end_all(self) -> None:
        with self._change:
            self._ends_with = self._ends_with or BROKEN
            jobs = [*self._active, *(self._waiting.pop() for _ in range(len(self._waiting)))]
            self._active = []
        self._batch.drop(self._batch.members)
        for job in jobs:
            self._metrics.answers.labels("failure").inc()
            job.end(self._ends_with)
