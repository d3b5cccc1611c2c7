"""The machine and the versions that figures belong to."""

import dataclasses
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from wiola_runtime.devices import FLAVOURS

# What decides how fast integer products run: x86 first, then Arm.
FEATURES = (
    *("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8"),
    *("asimddp", "i8mm", "sve"),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where figures were measured.

    Attributes:
        cpu: Model name as the system gives it.
        features: Those of `FEATURES` that the CPU has; empty where the system doesn't say.
        logical_cpus: Hyper-threads of the whole machine.
        versions: Of Python and of the packages that compute.
    """

    system: str
    cpu: str
    features: tuple[str, ...]
    logical_cpus: int
    versions: Mapping[str, str]


def this_machine() -> Machine:
    """Describe the machine that runs this process."""
    path = Path("/proc/cpuinfo")
    cpuinfo = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        cpu=cpu_model(cpuinfo) or platform.processor() or platform.machine(),
        features=cpu_features(cpuinfo),
        logical_cpus=os.cpu_count() or 1,
        versions=_versions(),
    )


def cpu_model(cpuinfo: str) -> str:
    """Return the model name in Linux's cpuinfo; empty where there is none."""
    return _first(cpuinfo, "model name")


def cpu_features(cpuinfo: str) -> tuple[str, ...]:
    """Return the features in Linux's cpuinfo that matter here (x86 `flags`, Arm `Features`)."""
    flags = (_first(cpuinfo, "flags") or _first(cpuinfo, "Features")).split()
    return tuple(feature for feature in FEATURES if feature in flags)


def _first(cpuinfo: str, key: str) -> str:
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("numpy", "wiola-runtime", *FLAVOURS):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # only one of the flavours is there, and a frozen application has none
    return versions
