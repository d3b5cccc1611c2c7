"""`wiola-export` in a process of its own, as a user runs it."""

import os
import subprocess
import sys

COMMAND = [sys.executable, "-m", "wiola_export"]


def run(*arguments, **environment):
    """Run it to its end; `environment` adds variables."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, check=False, env=os.environ | environment
    )
