"""A small study: a recorded checkpoint of odd shapes, texts of a few windows, and two cells."""

import dataclasses
from pathlib import Path

import numpy as np
from support import oracles

from wiola_export import trace
from wiola_export.evaluate.bootstrap import Interval
from wiola_export.options import DEMOS, CalibrationOptions, Source
from wiola_export.study.grid import pick
from wiola_export.study.runner import Study
from wiola_export.study.task import Figures, Outcome, Speed, Task

WORDS = ("truth", "fortune", "wife", "acknowledged", "in", "want", "of", "a", "man", "good")
CELLS = ("int4-gptq-32", "int8-nearest-64")


@dataclasses.dataclass(frozen=True)
class SmallStudy:
    """Where its inputs are."""

    checkpoint: Path
    text: Path
    calibration: Path

    @classmethod
    def write(cls, folder: Path) -> "SmallStudy":
        return cls(
            checkpoint=oracles.write_checkpoint(oracles.load("untied"), folder / "checkpoint"),
            text=_write_words(folder / "text.txt", seed=1),
            calibration=_write_words(folder / "calibration.txt", seed=2),
        )

    def study(self, out: Path, cells=CELLS, **changes) -> Study:
        """Return what is to be done."""
        return Study(
            source=Source(checkpoint=self.checkpoint),
            cells=pick(",".join(cells)),
            out=out,
            calibration=CalibrationOptions(source=self.calibration, windows=2),
            text=self.text,
            **changes,
        )


def patch_trace() -> None:
    """Let a process trace each shape once, as tests do; it takes most of the time of an export."""
    trace.trace = oracles.shared_trace


def _write_words(path: Path, seed: int) -> Path:
    words = np.random.default_rng(seed).choice(WORDS, 400)
    path.write_text(" ".join(words), "utf-8")
    return path


def make_task(out: Path, name: str = "int8-nearest-32") -> Task:
    """Return a task on the demo that nobody needs to do."""
    study = Study(source=Source(variant=DEMOS[0]), cells=pick(name), out=out)
    return study.tasks()[0]


def make_figures(*, size_bytes: int = 5_000_000, kl_nats: float = 0.001, **changes) -> Figures:
    """Return what a bundle might have measured."""
    known = {
        "kl_nats_interval": Interval(kl_nats / 2, kl_nats * 2),
        "top1_agreement": 0.9751,
        "top1_agreement_interval": None,
        "ppl_ratio": 1.0012,
        "ppl_ratio_interval": None,
        "bits_per_weight": 8.625,
        "speed": Speed(prompt_tokens_per_second=2900.0, reply_tokens_per_second=412.0),
    }
    return Figures(size_bytes=size_bytes, kl_nats=kl_nats, **(known | changes))


def make_outcome(name: str, **figures) -> Outcome:
    """Return what might have come of a cell."""
    return Outcome(name=name, choices={"precision": name[:4]}, figures=make_figures(**figures))
