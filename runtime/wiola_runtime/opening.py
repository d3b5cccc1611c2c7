"""Open a graph on a device; the only module that imports ONNX Runtime."""

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from wiola_runtime import devices
from wiola_runtime.config import is_count
from wiola_runtime.errors import BundleError, DeviceError
from wiola_runtime.manifest import Manifest, Role
from wiola_runtime.pages import enlarge_pages, private_memory
from wiola_runtime.saturation import check_rewriting, saturates
from wiola_runtime.state import DTYPES

if TYPE_CHECKING:
    import onnxruntime

FATAL = 4
SPIN_MICROSECONDS, BRIEF_SPINNING = "200", (1, 26)  # how long, and since which ONNX Runtime
TYPES = {f"tensor({name})": name for name in DTYPES} | {"tensor(float)": "float32"}
Tensors = set[tuple[str, str, tuple[int | None, ...]]]
GRAPH_ERRORS = (
    *("EPFail", "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile"),
    *("NotImplemented", "RuntimeException"),
)
MAX_THREADS = 1024  # beyond any machine that runs such a model; ONNX Runtime would start them all


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """Where and how wide the graph runs.

    Attributes:
        threads: Threads of one matrix product; None counts the physical cores.
        allow_spinning: Whether idle threads poll for work; None lets them do so for 200 µs, and
            sleep then.
        huge_pages: Whether to ask Linux for pages of 2 MiB under the weights.
        provider_options: What ONNX Runtime's CUDA provider is told besides, e.g. `device_id`; the
            CPU's ignores whatever it is told, so there it is refused here.
    """

    device: devices.Device = "cpu"
    threads: int | None = None
    allow_spinning: bool | None = None
    huge_pages: bool = True
    provider_options: Mapping[str, str | float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        given: object = self.provider_options
        if not isinstance(given, Mapping):
            raise DeviceError(f"provider_options is {given!r}; expected a mapping of their names")
        if self.provider_options and self.device == "cpu":
            raise DeviceError(
                f"provider option {next(iter(self.provider_options))} has no effect on the CPU; "
                "leave it out or choose device 'cuda'"
            )
        if self.threads is not None and not (
            is_count(self.threads, 1) and self.threads <= MAX_THREADS
        ):
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
    check_rewriting(ort, manifest)
    provider = devices.choose_provider(options.device, manifest, ort.get_available_providers())
    before = private_memory() if options.huge_pages and provider == devices.CPU_PROVIDER else []
    session = _create(ort, path, provider, options)
    if before:  # what takes a tenth of a second goes on while the first prompt is read
        threading.Thread(target=enlarge_pages, args=(before,), daemon=True).start()
    obstacle = _fallback(session, provider, options)
    if obstacle and options.device == "cuda":
        raise DeviceError(f"device 'cuda' cannot be had: {obstacle}")
    if obstacle:
        devices.warn_cpu_instead(obstacle)
    return session


def _fallback(
    session: "onnxruntime.InferenceSession", provider: str, options: GraphOptions
) -> str | None:
    """Tell what does not run where it should."""
    found = session.get_providers()
    if provider not in found[:1]:
        return f"ONNX Runtime fell back to {', '.join(found)}; check the CUDA and cuDNN libraries"
    if provider == devices.CPU_PROVIDER:
        return None
    given = devices.native_options(options.provider_options)
    devices.check_options(given, session.get_provider_options()[provider])
    return devices.misplaced(_placed(session))


def _placed(session: "onnxruntime.InferenceSession") -> Iterator[tuple[str, str]]:
    """Yield the provider and type of every node; none where ONNX Runtime does not tell yet."""
    if hasattr(session, "get_provider_graph_assignment_info"):
        for part in session.get_provider_graph_assignment_info():
            for node in part.get_nodes():
                yield part.ep_name, node.op_type


def _create(
    ort: ModuleType, path: Path, provider: str, options: GraphOptions
) -> "onnxruntime.InferenceSession":
    providers: list[str | tuple[str, dict[str, str]]] = [devices.CPU_PROVIDER]
    given = devices.native_options(options.provider_options)
    if provider != devices.CPU_PROVIDER:
        providers.insert(0, (provider, given))
    if provider == devices.CUDA_PROVIDER and hasattr(ort, "preload_dlls"):
        # It reports what it misses with print, which would land in the reply of `wiola-run`.
        with contextlib.redirect_stdout(sys.stderr):
            ort.preload_dlls()
    native = ort.capi.onnxruntime_pybind11_state
    errors = (RuntimeError, *(getattr(native, name) for name in GRAPH_ERRORS))
    try:
        return ort.InferenceSession(
            path, _native_options(ort, options), providers=providers, enable_fallback=0
        )
    except errors as error:
        reason = str(error).strip().splitlines()[0]
        told = reason.lower().replace("_", " ")  # as in "Invalid device ID"
        option = next((key for key in given if key.lower().replace("_", " ") in told), None)
        if option is not None:
            raise DeviceError(f"provider option {option}={given[option]}: {reason}") from error
        raise BundleError(f"onnxruntime {ort.__version__} refuses {path}: {reason}") from error


def _native_options(ort: ModuleType, options: GraphOptions) -> "onnxruntime.SessionOptions":
    native = ort.SessionOptions()
    native.intra_op_num_threads = options.threads or devices.default_threads()
    native.inter_op_num_threads = 1
    native.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    native.log_severity_level = FATAL
    # Where it can be told to, a thread polls between two products of a pass, and sleeps after it.
    brief = options.allow_spinning is None and devices.version(ort.__version__) >= BRIEF_SPINNING
    spins = "1" if options.allow_spinning or brief else "0"
    native.add_session_config_entry("session.intra_op.allow_spinning", spins)
    if brief:
        native.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_MICROSECONDS)
    if saturates(ort):  # the exact kernels take twice the time where the fast ones are exact too
        native.add_session_config_entry("session.x64quantprecision", "1")
    native.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    # Passes differ in length: blocks that fit the last one are kept beside those of the next.
    native.enable_mem_pattern = False
    return native


def check_tensors(session: "onnxruntime.InferenceSession", manifest: Manifest) -> None:
    """Check that a graph takes what it will be fed, and gives what will be read.

    Raises:
        BundleError: Names, types or sizes are not those of the manifest.
    """
    axes: dict[Role, int] = {"token_ids": 2, "past_lengths": 1, "output_positions": 1}
    inputs: Tensors = {(manifest.name_of(role), "int64", (None,) * n) for role, n in axes.items()}
    outputs: Tensors = {(manifest.name_of("logits"), "float32", (None, None, manifest.vocab_size))}
    for state in manifest.states:
        inputs.add((state.past, state.dtype, _sizes(state.axes)))
        outputs.add((state.present, state.dtype, _sizes(state.axes)))
    pairs = ("inputs", inputs, session.get_inputs()), ("outputs", outputs, session.get_outputs())
    for what, expected, found in pairs:
        has: Tensors = {(t.name, TYPES.get(t.type, t.type), _sizes(t.shape)) for t in found}
        difference = sorted({name for name, *_ in has ^ expected})
        if difference:
            raise BundleError(
                f"graph and manifest of {manifest.name} disagree on the {what} "
                f"{', '.join(difference)}; export again"
            )


def _sizes(axes: Iterable[str | int | None]) -> tuple[int | None, ...]:
    """Return the sizes that are known; graph and manifest may name the others as they like."""
    return tuple(axis if isinstance(axis, int) else None for axis in axes)
