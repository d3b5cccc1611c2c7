"""Record what a bundle computes; run as a script in a process of its own.

The one argument is a `Request` as JSON; JSON is what it prints.
"""

import dataclasses
import json
import sys

import numpy as np
from numpy.typing import NDArray

import wiola_runtime as wr

PROMPT = "It is a truth"
NEW_TOKENS = 24
TOP_LOGITS = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to record: a bundle, and how far other machines may be off.

    Attributes:
        relative_tolerance: Allowed |difference| of a logit, as a share of their deviation.
    """

    bundle: str
    relative_tolerance: float


def record(request: Request) -> dict[str, object]:
    """Continue a prompt greedily and keep the best logits at prompt end, middle and end.

    Raises:
        WiolaRuntimeError: The bundle cannot be run here.
    """
    with wr.load(request.bundle, verify=False) as model:
        prompt = model.tokenizer.encode(PROMPT)
        count = min(NEW_TOKENS, model.manifest.context_length - len(prompt) - 1)
        # Nothing ends the reply, so that every bundle has golden tokens.
        config = wr.GenerationConfig(max_new_tokens=count, ignore_eos=True)
        reply = list(model.generate(prompt, config).token_ids)
        logits = model.logits([*prompt, *reply])
    start = len(prompt) - 1
    positions = sorted({start, start + count // 2, start + count})
    return {
        "prompt_ids": prompt,
        "token_ids": reply,
        "logits": [_golden(logits[position], position) for position in positions],
        "tolerance": _round_up(request.relative_tolerance * float(logits.std())),
    }


def _golden(row: NDArray[np.float32], position: int) -> dict[str, object]:
    best: list[int] = np.argsort(-row, kind="stable")[:TOP_LOGITS].tolist()
    values = [round(float(row[i]), 5) for i in best]
    return {"position": position, "token_ids": best, "values": values}


def _round_up(value: float) -> float:
    """Round to two digits, so that the figure reads as what it is: a bound."""
    return float(f"{value * 1.05:.1e}")


def main(argument: str) -> int:
    """Print the record, or the reason why there is none, and return the exit code."""
    try:
        result = record(Request(**json.loads(argument)))
    except wr.WiolaRuntimeError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the parent reads it
        return 2
    print(json.dumps(result))  # noqa: T201 - the parent reads it
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
