"""Devices, versions, threads: what is asked, what is there, what runs."""

import math
import os
import sys
import time
import types

import onnxruntime
import pytest
from support.tiny_bundle import TinyBundle

from wiola_runtime import BundleError, DeviceError, devices, graph, load, opening
from wiola_runtime.opening import GraphOptions

CPU_ONLY = ["AzureExecutionProvider", "CPUExecutionProvider"]
WITH_CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]
CPU_BUNDLE = TinyBundle(target="cpu").manifest({})
CUDA_BUNDLE = TinyBundle(target="cuda").manifest({})
PORTABLE_BUNDLE = TinyBundle(target="portable").manifest({})


@pytest.fixture(autouse=True)
def exact_products(monkeypatch):
    """Leave out the question to the processor, which no stand-in could answer."""
    monkeypatch.setattr(opening, "saturates", lambda _: False)


@pytest.mark.parametrize(
    ("device", "manifest", "available", "provider"),
    [
        ("cpu", CPU_BUNDLE, WITH_CUDA, "CPUExecutionProvider"),
        ("cpu", CUDA_BUNDLE, CPU_ONLY, "CPUExecutionProvider"),
        ("cuda", CUDA_BUNDLE, WITH_CUDA, "CUDAExecutionProvider"),
        ("cuda", PORTABLE_BUNDLE, WITH_CUDA, "CUDAExecutionProvider"),
        ("auto", CUDA_BUNDLE, WITH_CUDA, "CUDAExecutionProvider"),
    ],
)
def test_a_device_means_a_provider(device, manifest, available, provider):
    assert devices.choose_provider(device, manifest, available) == provider


@pytest.mark.parametrize(
    ("manifest", "available", "reason"),
    [
        (CUDA_BUNDLE, CPU_ONLY, r"has AzureExecutionProvider, CPUExecutionProvider; run: pip"),
        (CPU_BUNDLE, WITH_CUDA, r"no float32 kernel on CUDA; export it with --target cuda"),
    ],
)
def test_cuda_is_an_error_and_auto_a_warning(manifest, available, reason):
    with pytest.raises(DeviceError, match=rf"device 'cuda' cannot be had: .*{reason}"):
        devices.choose_provider("cuda", manifest, available)
    with pytest.warns(RuntimeWarning, match=rf"running on the CPU: .*{reason}"):
        assert devices.choose_provider("auto", manifest, available) == "CPUExecutionProvider"


def test_an_unknown_device_is_named():
    with pytest.raises(DeviceError, match=r"device is 'tpu'; expected 'cpu', 'cuda' or 'auto'"):
        devices.choose_provider("tpu", CPU_BUNDLE, CPU_ONLY)


def test_what_really_runs_is_reported(tmp_path):
    """A CUDA bundle runs on a machine without CUDA when the CPU is accepted."""
    folder = TinyBundle(cache_dtype="float16", target="cuda").write(tmp_path / "b")
    with pytest.warns(RuntimeWarning, match=r"running on the CPU: this ONNX Runtime has"):
        model = load(folder, device="auto")

    result = model.generate("It", max_new_tokens=1)

    assert (model.device, model.provider) == ("cpu", "CPUExecutionProvider")
    assert (result.device, result.provider) == ("cpu", "CPUExecutionProvider")


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_a_silent_fall_back_of_onnxruntime_is_noticed(tmp_path, monkeypatch, device):
    """CUDA is listed, but its libraries are missing and the session runs on the CPU."""
    folder = TinyBundle(target="cuda", cache_dtype="float16").write(tmp_path / "b")
    real = opening._create
    monkeypatch.setattr(opening.devices, "_cuda_obstacle", lambda *_: None)
    monkeypatch.setattr(
        opening,
        "_create",
        lambda ort, path, _, options: real(ort, path, "CPUExecutionProvider", options),
    )
    message = r"fell back to CPUExecutionProvider; check the CUDA and cuDNN libraries"
    if device == "cuda":
        with pytest.raises(DeviceError, match=message):
            load(folder, device=device)
    else:
        with pytest.warns(RuntimeWarning, match=message):
            assert load(folder, device=device).device == "cpu"


def test_the_minimum_version_is_checked(tmp_path):
    folder = TinyBundle().write(tmp_path / "b")
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"1.20"', '"99.1"'))

    with pytest.raises(BundleError, match=r"tiny needs onnxruntime >= 99\.1, found 1\.\d+"):
        load(folder)


@pytest.mark.parametrize(
    ("installed", "enough"), [("1.20.0", True), ("1.9.2", False), ("1.100.0+cu13", True)]
)
def test_versions_compare_as_numbers(installed, enough):
    if enough:
        devices.check_version(installed, CPU_BUNDLE)
    else:
        with pytest.raises(BundleError, match=r">= 1\.20, found 1\.9\.2; run: pip install"):
            devices.check_version(installed, CPU_BUNDLE)


def test_two_builds_of_onnxruntime_are_refused(monkeypatch):
    both = {"onnxruntime", "onnxruntime-gpu"}
    monkeypatch.setattr(devices, "_is_installed", both.__contains__)

    with pytest.raises(DeviceError, match=r"onnxruntime and onnxruntime-gpu are both installed"):
        devices.check_flavours()


def test_no_onnxruntime_is_an_instruction(monkeypatch):
    monkeypatch.setattr(devices, "_is_installed", lambda _: False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    with pytest.raises(DeviceError, match=r"not installed; pip install 'wiola-runtime\[cpu\]'"):
        opening.import_onnxruntime()


def test_a_bug_inside_onnxruntime_stays_a_bug(monkeypatch, tmp_path):
    """Only its own absence is turned into an instruction."""
    (tmp_path / "onnxruntime.py").write_text("import absent_dependency")
    monkeypatch.delitem(sys.modules, "onnxruntime")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ModuleNotFoundError, match="absent_dependency"):
        opening.import_onnxruntime()


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "200000 100000"}, 2.0),
        ({"cpu.max": "max 100000"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ({}, math.inf),
    ],
)
def test_the_quota_of_a_container_is_read(tmp_path, files, quota):
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content + "\n")

    assert devices._cgroup_quota(tmp_path) == quota


@pytest.mark.parametrize(
    ("cpus", "quota", "threads"), [(4, math.inf, 2), (4, 1.5, 1), (4, 0.2, 1), (1, 8.0, 1)]
)
def test_threads_are_the_cores_this_process_may_use(monkeypatch, cpus, quota, threads):
    """Two hyper-threads are one core; a quota rounds down, and one thread is the least."""
    affinity = types.SimpleNamespace(sched_getaffinity=lambda _: set(range(cpus)))
    monkeypatch.setattr(devices, "os", affinity)
    monkeypatch.setattr(devices, "_core_of", lambda cpu: str(cpu // 2))
    monkeypatch.setattr(devices, "_cgroup_quota", lambda: quota)

    assert devices.default_threads() == threads


def test_without_an_affinity_mask_onnxruntime_decides(monkeypatch):
    monkeypatch.setattr(devices, "os", types.SimpleNamespace())

    assert devices.default_threads() == 0


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs an affinity mask")
def test_this_machine_has_between_one_and_all_cores():
    assert 1 <= devices.default_threads() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("threads", [0, 1025, "2", 1.0])
def test_a_count_of_threads_that_is_none_is_refused(threads):
    message = f"^threads is {threads}; expected 1 to 1024, or None to choose$"
    with pytest.raises(DeviceError, match=message):
        GraphOptions(threads=threads)


def test_an_idle_model_costs_no_processor_time(tmp_path):
    """Worker threads sleep between calls instead of polling."""
    with load(TinyBundle().write(tmp_path / "b"), threads=2) as model:
        model.generate("It", max_new_tokens=8)
        began = time.process_time()
        time.sleep(2)

        assert time.process_time() - began < 0.02 * 2


def fake_onnxruntime(*, found=None, placed=(), refusal=None, providers=WITH_CUDA):
    """Return a module that opens sessions with a CUDA provider, and the sessions it opened.

    `found` are the options that its provider says to have, `placed` its nodes (provider, type).
    """
    opened = []

    class Session:
        def __init__(self, *_, providers, enable_fallback):
            opened.append(dict(provider for provider in providers if isinstance(provider, tuple)))
            assert enable_fallback == 0
            assert providers[-1] == "CPUExecutionProvider"
            if refusal:
                raise refusal

        def get_providers(self):
            return list(providers)

        def get_provider_options(self):
            told = opened[-1].get("CUDAExecutionProvider", {}) if found is None else found
            return {"CUDAExecutionProvider": told, "CPUExecutionProvider": {}}

        def get_provider_graph_assignment_info(self):
            for provider, kind in placed:
                node = types.SimpleNamespace(op_type=kind)
                yield types.SimpleNamespace(ep_name=provider, get_nodes=lambda node=node: [node])

    real = opening.import_onnxruntime()
    module = types.SimpleNamespace(
        __version__="1.99",
        InferenceSession=Session,
        SessionOptions=real.SessionOptions,
        GraphOptimizationLevel=real.GraphOptimizationLevel,
        capi=real.capi,
        get_available_providers=lambda: WITH_CUDA,
        preload_dlls=lambda: sys.stdout.write("libcudnn is missing\n"),
    )
    return module, opened


def open_fake(module, device="cuda", **options):
    options = GraphOptions(device=device, threads=1, provider_options=options)
    return opening.open_session(module, "model.onnx", CUDA_BUNDLE, options)


def test_provider_options_reach_the_provider_as_it_writes_them(capsys):
    module, opened = fake_onnxruntime()

    session = open_fake(module, device_id=1, use_tf32=False, gpu_mem_limit="2048", prefer_nhwc=True)

    expected = {"device_id": "1", "use_tf32": "0", "gpu_mem_limit": "2048", "prefer_nhwc": "1"}
    assert opened == [{"CUDAExecutionProvider": expected}]
    assert session.get_providers()[0] == "CUDAExecutionProvider"
    # What the loader of CUDA's libraries says is no part of a reply.
    assert capsys.readouterr() == ("", "libcudnn is missing\n")


def test_a_build_that_loads_its_libraries_itself_is_left_alone(capsys):
    module, _ = fake_onnxruntime()
    del module.preload_dlls

    open_fake(module)

    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kind", [RuntimeError, "EPFail", "Fail", "RuntimeException"])
def test_an_option_that_the_provider_refuses_is_named(kind):
    native = opening.import_onnxruntime().capi.onnxruntime_pybind11_state
    error = getattr(native, kind) if isinstance(kind, str) else kind
    module, _ = fake_onnxruntime(refusal=error('Unknown provider option: "devise_id".\nat x.h:74'))

    message = r'^provider option devise_id=1: Unknown provider option: "devise_id"\.$'
    with pytest.raises(DeviceError, match=message):
        open_fake(module, use_tf32=True, devise_id=1)
    with pytest.raises(BundleError, match=r"^onnxruntime 1\.99 refuses model\.onnx: Unknown"):
        open_fake(module, use_tf32=True)


def test_a_gpu_that_is_not_there_is_named():
    refusal = RuntimeError("Invalid device ID: 9, must be between 0 (inclusive) and 1 (exclusive).")
    module, _ = fake_onnxruntime(refusal=refusal)

    with pytest.raises(DeviceError, match=r"^provider option device_id=9: Invalid device ID: 9, "):
        open_fake(module, device_id=9)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"device_id": "0"}, "provider option device_id is 0, not 1; the provider has device_id$"),
        ({}, "provider option device_id is unknown, not 1; the provider has no options$"),
        ({"b": "1", "a": "0"}, "provider option device_id is unknown, not 1; .* has a, b$"),
    ],
)
@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_an_option_that_was_ignored_or_changed_is_an_error(found, message, device):
    module, _ = fake_onnxruntime(found=found)

    with pytest.raises(DeviceError, match=f"^{message}"):
        open_fake(module, device, device_id=1)


def test_what_is_no_bundle_and_no_mapping_of_options_is_refused(tmp_path):
    with pytest.raises(BundleError, match=r"^bundle is None; expected the path of a folder$"):
        load(None)
    folder = TinyBundle().write(tmp_path / "b")
    for device in ("cpu", "cuda"):
        with pytest.raises(DeviceError, match=r"^provider_options is 'abc'; expected a mapping"):
            load(folder, device=device, provider_options="abc")


def test_the_cpu_takes_no_provider_options(tmp_path):
    """ONNX Runtime ignores there whatever it is told."""
    folder = TinyBundle().write(tmp_path / "b")

    with pytest.raises(DeviceError, match=r"^provider option use_arena has no effect on the CPU; "):
        load(folder, provider_options={"use_arena": 1})


def test_options_for_a_gpu_do_not_keep_auto_from_the_cpu(tmp_path):
    folder = TinyBundle(target="cuda", cache_dtype="float16").write(tmp_path / "b")

    with pytest.warns(RuntimeWarning, match="running on the CPU"):
        model = load(folder, device="auto", provider_options={"device_id": 1})

    assert model.generate("It", max_new_tokens=2).device == "cpu"


CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


@pytest.mark.parametrize(
    ("placed", "message"),
    [
        ([(CUDA, "MatMulNBits"), (CPU, "Shape"), (CPU, "Gather"), (CPU, "Add")], None),
        ([(CUDA, "Gemm"), (CUDA, "GroupQueryAttention")], None),
        ([(CPU, "MatMulNBits")], "1 nodes run on the CPU: MatMulNBits"),
        (
            [(CPU, "MatMul"), (CPU, "FusedMatMul"), (CPU, "MatMul"), (CPU, "MultiHeadAttention")],
            "4 nodes run on the CPU: FusedMatMul, MatMul, MultiHeadAttention",
        ),
        ([(CPU, "Gemm"), (CPU, "MatMulInteger")], "2 nodes run on the CPU: Gemm, MatMulInteger"),
    ],
)
def test_products_do_not_run_on_the_cpu_unnoticed(recwarn, placed, message):
    """Arithmetic on shapes does, by ONNX Runtime's own choice."""
    module, _ = fake_onnxruntime(placed=placed)

    if message is None:
        open_fake(module)
        open_fake(module, "auto")
        assert not recwarn
    else:
        with pytest.raises(DeviceError, match=f"^device 'cuda' cannot be had: {message}$"):
            open_fake(module)
        with pytest.warns(RuntimeWarning, match=f"^running on the CPU: {message}$"):
            open_fake(module, "auto")


def test_an_onnxruntime_that_does_not_tell_where_nodes_run_is_believed():
    module, _ = fake_onnxruntime()
    del module.InferenceSession.get_provider_graph_assignment_info

    assert open_fake(module).get_providers()[0] == CUDA


def test_on_the_cpu_every_node_is_told_to_run_there(tmp_path):
    """So that the question above is asked in words that ONNX Runtime understands."""
    ort = opening.import_onnxruntime()
    folder = TinyBundle().write(tmp_path / "b")
    session = opening._create(ort, folder / "model.onnx", CPU, GraphOptions())

    placed = list(opening._placed(session))

    assert {provider for provider, _ in placed} == {CPU}
    assert {"MatMul", "GroupQueryAttention"} <= {kind for _, kind in placed}
    assert devices.misplaced(placed).startswith("5 nodes run on the CPU: ")


def test_buffers_are_on_the_chosen_gpu(tmp_path, monkeypatch):
    """The second GPU's session cannot take tensors of the first."""
    bundle = TinyBundle(target="cuda", cache_dtype="float16")
    folder = bundle.write(tmp_path / "b")
    ort = opening.import_onnxruntime()
    session = opening._create(ort, folder / "model.onnx", CPU, GraphOptions())
    monkeypatch.setattr(graph, "open_session", lambda *_: session)
    monkeypatch.setattr(devices, "CUDA_PROVIDER", CPU)  # the session's provider counts as a GPU
    places = []

    def allocate(array, *place):
        places.append(place)
        return ort.OrtValue.ortvalue_from_numpy(array)

    options = GraphOptions(device="cuda", provider_options={"device_id": "1"})
    opened = graph.Graph(folder, bundle.manifest({}), options)
    opened._ort = types.SimpleNamespace(
        OrtValue=types.SimpleNamespace(ortvalue_from_numpy=allocate)
    )
    opened.start()

    assert set(places) == {("cuda", 1)}


@pytest.mark.parametrize(
    ("version", "asked", "spins", "microseconds"),
    [
        ("1.32.0", None, "1", "200"),
        ("1.26.0", None, "1", "200"),
        ("1.25.1", None, "0", None),
        ("1.32.0", False, "0", None),
        ("1.32.0", True, "1", None),
        ("1.25.1", True, "1", None),
    ],
)
def test_idle_threads_poll_briefly_where_they_can_be_told_to(version, asked, spins, microseconds):
    """An ONNX Runtime that knows no duration would poll for a second after each pass."""
    ort = types.SimpleNamespace(
        __version__=version,
        SessionOptions=onnxruntime.SessionOptions,
        GraphOptimizationLevel=onnxruntime.GraphOptimizationLevel,
    )

    native = opening._native_options(ort, GraphOptions(allow_spinning=asked))

    assert native.get_session_config_entry("session.intra_op.allow_spinning") == spins
    duration = "session.intra_op.spin_duration_us"
    if microseconds is None:
        with pytest.raises(RuntimeError, match=duration):
            native.get_session_config_entry(duration)
    else:
        assert native.get_session_config_entry(duration) == microseconds
