"""Who takes part: bundles, and other engines that are described in a small file each."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from wiola_export.bench.contest import Contestant
from wiola_export.bench.workload import Workload
from wiola_export.errors import OptionError
from wiola_export.evaluate import speed_worker
from wiola_runtime.manifest import Manifest
from wiola_runtime.opening import MAX_THREADS


def contestants(bundles: Sequence[Path], peers: Sequence[Path]) -> list[Contestant]:
    """Return all that take part, each by a name of its own.

    Raises:
        BundleError: A folder is no bundle.
        OptionError: A description is none, or a name occurs twice.
    """
    found = [*map(bundle_contestant, bundles), *map(read_peer, peers)]
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"two contestants are called {name}; rename a folder or a peer")
    return found


def workload_for(
    bundles: Sequence[Path], *, depth_tokens: int | None, threads: int | None
) -> Workload:
    """Return the usual workload, cut to what fits the shortest context of the bundles.

    Raises:
        OptionError: The depth that was asked for does not fit, or so many threads cannot be.
    """
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise OptionError(f"--threads is {threads}; expected an integer from 1 to {MAX_THREADS}")
    if depth_tokens is not None and depth_tokens < 0:
        raise OptionError(f"--depth is {depth_tokens}; expected an integer >= 0")
    context = min(Manifest.read(bundle).context_length for bundle in bundles)
    usual = Workload()
    longest = context - usual.deep_reply_tokens - 1
    if depth_tokens is not None and depth_tokens > longest:
        raise OptionError(
            f"--depth is {depth_tokens}; the shortest context, of {context} tokens, takes "
            f"{max(longest, 0)} before a reply of {usual.deep_reply_tokens}"
        )
    quarter = max(context // 4, 1)
    return Workload(
        prompt_tokens=min(usual.prompt_tokens, quarter),
        reply_tokens=min(usual.reply_tokens, quarter),
        prefill_tokens=min(usual.prefill_tokens, 2 * quarter),
        depth_tokens=max(min(usual.depth_tokens, longest), 0)
        if depth_tokens is None
        else depth_tokens,
        threads=threads,
    )


def bundle_contestant(bundle: Path) -> Contestant:
    """Return a bundle as a contestant; it is run by the interpreter that runs this.

    Raises:
        BundleError: The folder is no bundle.
    """
    Manifest.read(bundle)
    command = (sys.executable, "-P", str(speed_worker.__file__), str(bundle))
    return Contestant(name=bundle.resolve().name, command=command)


def read_peer(path: Path) -> Contestant:
    """Read the description of another engine: its name and the command that measures it.

    Raises:
        OptionError: The file is absent or no such description.
    """
    expected = 'expected {"name": "…", "command": ["program", "argument", …]}'
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{path} cannot be read ({error.strerror}); {expected}") from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} is no JSON ({error}); {expected}") from error
    match found:
        case {"name": str(name), "command": [str(), *_] as command, **rest} if not rest and all(
            isinstance(part, str) for part in command
        ):
            return _described(path, name, command)
    raise OptionError(f"{path} describes no engine; {expected}")


def _described(path: Path, name: str, command: Sequence[str]) -> Contestant:
    try:
        return Contestant(name=name, command=tuple(command))
    except OptionError as error:
        raise OptionError(f"{path} describes no engine: {error}") from error
