"""Which ONNX Runtime is installed, which provider a device means, how many threads to start."""

import math
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from wiola_runtime.errors import BundleError, DeviceError
from wiola_runtime.manifest import Manifest

Device = Literal["cpu", "cuda", "auto"]
CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
# Distributions that all install the one module `onnxruntime` and overwrite each other's files.
FLAVOURS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino")
# What nearly all time goes into. On a GPU none of it may run on the CPU unnoticed; arithmetic on
# shapes belongs there, and ONNX Runtime puts it there itself.
HEAVY_NODES = re.compile(r"(Fused)?MatMul|Gemm|.*Attention")
INSTALL_HINT = "pip install 'wiola-runtime[cpu]' (or 'wiola-runtime[cuda]')"


def check_flavours() -> None:
    """Refuse an environment in which two builds of ONNX Runtime overwrote each other.

    No build at all is not an error here: a frozen application carries the module without its
    metadata.

    Raises:
        DeviceError: More than one build is installed.
    """
    found = [name for name in FLAVOURS if _is_installed(name)]
    if len(found) > 1:
        raise DeviceError(
            f"{' and '.join(found)} are both installed and overwrite each other's files; "
            f"run: pip uninstall {' '.join(found)}, then {INSTALL_HINT}"
        )


def check_version(installed: str, manifest: Manifest) -> None:
    """Refuse a bundle that needs a newer ONNX Runtime.

    Raises:
        BundleError: The installed version is older than the graph's minimum.
    """
    minimum = manifest.graph.minimum_onnxruntime
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})*", minimum):
        raise BundleError(f"bundle {manifest.name} needs onnxruntime {minimum!r:.40}; export again")
    if version(installed) < version(minimum):
        raise BundleError(
            f"bundle {manifest.name} needs onnxruntime >= {minimum}, found {installed}; "
            "run: pip install --upgrade onnxruntime"
        )


def choose_provider(device: Device, manifest: Manifest, available: Sequence[str]) -> str:
    """Return the execution provider that `device` means on this machine for this bundle.

    Raises:
        DeviceError: The device is unknown, absent, or the bundle's graph has no kernels there.
    """
    if device not in get_args(Device):
        raise DeviceError(f"device is {device!r}; expected 'cpu', 'cuda' or 'auto'")
    if device == "cpu":
        return CPU_PROVIDER
    obstacle = _cuda_obstacle(manifest, available)
    if obstacle is None:
        return CUDA_PROVIDER
    if device == "cuda":
        raise DeviceError(f"device 'cuda' cannot be had: {obstacle}")
    warn_cpu_instead(obstacle)
    return CPU_PROVIDER


def native_options(given: Mapping[str, str | float]) -> dict[str, str]:
    """Write provider options as ONNX Runtime does, for which true is 1."""
    truths = {"true": "1", "false": "0"}
    return {key: truths.get(str(v).lower(), str(v)) for key, v in given.items()}


def check_options(given: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Compare the options that a session was given with those that it has.

    Raises:
        DeviceError: One was ignored or changed.
    """
    for key, value in given.items():
        if found.get(key) != value:
            raise DeviceError(
                f"provider option {key} is {found.get(key, 'unknown')}, not {value}; the provider "
                f"has {', '.join(sorted(found)) or 'no options'}"
            )


def misplaced(nodes: Iterable[tuple[str, str]]) -> str | None:
    """Return what a GPU should do and the CPU does, of nodes (provider, type)."""
    types = [kind for provider, kind in nodes if provider == CPU_PROVIDER]
    heavy = [kind for kind in types if HEAVY_NODES.match(kind)]
    if not heavy:
        return None
    return f"{len(heavy)} nodes run on the CPU: {', '.join(sorted(set(heavy)))}"


def warn_cpu_instead(obstacle: str) -> None:
    """Say why `auto` does not run on the GPU."""
    warnings.warn(f"running on the CPU: {obstacle}", RuntimeWarning, stacklevel=2)


def default_threads() -> int:
    """Count the physical cores that this process may use; 0 leaves the count to ONNX Runtime.

    Two threads on one core share its multiplier and its cache, so hyper-threads do not count.
    The affinity mask and the quota of a container bound the count: more threads than the quota
    has cores would be stopped by the scheduler in the middle of every matrix product. Where the
    system does not tell, ONNX Runtime's own default is one thread per physical core.
    """
    if not hasattr(os, "sched_getaffinity"):
        return 0
    cores = {_core_of(cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, math.floor(min(len(cores), _cgroup_quota())))


def _is_installed(distribution: str) -> bool:
    from importlib import metadata  # noqa: PLC0415  a tenth of the time that the package takes

    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def version(text: str) -> tuple[int, ...]:
    """Return a version's first numbers, which compare as versions do."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _cuda_obstacle(manifest: Manifest, available: Sequence[str]) -> str | None:
    if manifest.target == "cpu":
        return (
            f"bundle {manifest.name} was exported for the CPU, and attention has no float32 "
            "kernel on CUDA; export it with --target cuda"
        )
    if CUDA_PROVIDER not in available:
        return (
            f"this ONNX Runtime has {', '.join(available)}; "
            "run: pip install 'wiola-runtime[cuda]' in an environment without onnxruntime"
        )
    return None


def _core_of(cpu: int) -> str:
    """Name the physical core of a logical CPU by the list of its hyper-threads."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text(encoding="ascii").strip() if path.is_file() else str(cpu)


def _cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Return how many CPUs the container's quota allows; infinity without one."""
    unified = root / "cpu.max"
    if unified.is_file():
        quota, period = unified.read_text(encoding="ascii").split()
        return math.inf if quota == "max" else int(quota) / int(period)
    legacy = root / "cpu" / "cpu.cfs_quota_us"
    if legacy.is_file() and int(legacy.read_text(encoding="ascii")) > 0:
        period = legacy.with_name("cpu.cfs_period_us").read_text(encoding="ascii")
        return int(legacy.read_text(encoding="ascii")) / int(period)
    return math.inf
