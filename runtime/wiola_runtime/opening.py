"""Open a graph on a device; the only module that imports ONNX Runtime."""

import contextlib
import dataclasses
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from wiola_runtime import devices
from wiola_runtime.errors import BundleError, DeviceError
from wiola_runtime.manifest import Manifest

if TYPE_CHECKING:
    import onnxruntime

FATAL = 4
GRAPH_ERRORS = (
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "NoSuchFile",
    "NotImplemented",
    "RuntimeException",
)
MAX_THREADS = 1024  # beyond any machine that runs such a model; ONNX Runtime would start them all


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """Where and how wide the graph runs.

    Attributes:
        threads: Threads of one matrix product; None counts the physical cores.
        allow_spinning: Whether idle threads poll for work: faster alone, costly beside others.
    """

    device: devices.Device = "cpu"
    threads: int | None = None
    allow_spinning: bool = False

    def __post_init__(self) -> None:
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            raise DeviceError(
                f"threads is {self.threads}; expected 1 to {MAX_THREADS}, or None to choose"
            )


def import_onnxruntime() -> ModuleType:
    """Import ONNX Runtime when the first bundle is opened.

    Raises:
        DeviceError: No build, or more than one, is installed.
    """
    devices.check_flavours()
    try:
        import onnxruntime as ort  # noqa: PLC0415 - its absence must become an instruction
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise DeviceError(f"onnxruntime is not installed; {devices.INSTALL_HINT}") from error
    return cast("ModuleType", ort)


def open_session(
    ort: ModuleType, path: Path, manifest: Manifest, options: GraphOptions
) -> "onnxruntime.InferenceSession":
    """Open a graph where the options say.

    Raises:
        BundleError: ONNX Runtime cannot read the graph.
        DeviceError: The wanted device cannot be had.
    """
    provider = devices.choose_provider(options.device, manifest, ort.get_available_providers())
    session = _create(ort, path, provider, options)
    found = session.get_providers()
    if provider in found[:1]:
        return session
    obstacle = f"ONNX Runtime fell back to {', '.join(found)}; check the CUDA and cuDNN libraries"
    if options.device == "cuda":
        raise DeviceError(f"device 'cuda' cannot be had: {obstacle}")
    devices.warn_cpu_instead(obstacle)
    return session


def _create(
    ort: ModuleType, path: Path, provider: str, options: GraphOptions
) -> "onnxruntime.InferenceSession":
    providers = list(dict.fromkeys((provider, devices.CPU_PROVIDER)))
    if provider == devices.CUDA_PROVIDER and hasattr(ort, "preload_dlls"):
        # It reports what it misses with print, which would land in the reply of `wiola-run`.
        with contextlib.redirect_stdout(sys.stderr):
            ort.preload_dlls()
    native = ort.capi.onnxruntime_pybind11_state
    try:
        return ort.InferenceSession(
            path, _native_options(ort, options), providers=providers, enable_fallback=0
        )
    except tuple(getattr(native, name) for name in GRAPH_ERRORS) as error:
        reason = str(error).strip().splitlines()[0]
        raise BundleError(f"onnxruntime {ort.__version__} refuses {path}: {reason}") from error


def _native_options(ort: ModuleType, options: GraphOptions) -> "onnxruntime.SessionOptions":
    native = ort.SessionOptions()
    native.intra_op_num_threads = options.threads or devices.default_threads()
    native.inter_op_num_threads = 1
    native.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    native.log_severity_level = FATAL
    spin = "1" if options.allow_spinning else "0"
    native.add_session_config_entry("session.intra_op.allow_spinning", spin)
    # Where a processor adds products of 8-bit numbers in 16 bits (AVX2 without VNNI), sums would
    # saturate silently; the processor's exact kernels are taken there.
    native.add_session_config_entry("session.x64quantprecision", "1")
    return native


def check_names(session: "onnxruntime.InferenceSession", manifest: Manifest) -> None:
    """Check that graph and manifest have the same inputs and outputs.

    Raises:
        BundleError: They do not.
    """
    pairs = (
        ("inputs", session.get_inputs(), manifest.inputs),
        ("outputs", session.get_outputs(), manifest.outputs),
    )
    for what, found, expected in pairs:
        difference = {one.name for one in found} ^ {one.name for one in expected}
        if difference:
            raise BundleError(
                f"graph and manifest of {manifest.name} disagree on the {what} "
                f"{', '.join(sorted(difference))}; export again"
            )
