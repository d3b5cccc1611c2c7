"""Run a measurement in a process of its own: memory and time are then the runtime's alone."""

import json
import subprocess
import sys
from collections.abc import Mapping
from types import ModuleType

from wiola_export.errors import EvaluationError


def run_child(worker: ModuleType, request: Mapping[str, object]) -> dict[str, object]:
    """Run a worker module as a script; it takes a request and prints a result, both as JSON.

    Raises:
        EvaluationError: The process failed; the message carries its last line.
    """
    command = [
        sys.executable,
        "-P",  # do not put this folder in front of the standard library
        str(worker.__file__),
        json.dumps(request),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - own script
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise EvaluationError(
            f"{request.get('bundle')} could not be run (exit code {done.returncode}): {reason}"
        )
    result: dict[str, object] = json.loads(done.stdout)
    return result
