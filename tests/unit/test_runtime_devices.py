"""Devices, versions, threads: what is asked, what is there, what runs."""

import math
import os
import sys
import time
import types

import pytest
from support.tiny_bundle import TinyBundle

from wiola_runtime import BundleError, DeviceError, devices, load, opening
from wiola_runtime.opening import GraphOptions

CPU_ONLY = ["AzureExecutionProvider", "CPUExecutionProvider"]
WITH_CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]
CPU_BUNDLE = TinyBundle(target="cpu").manifest({})
CUDA_BUNDLE = TinyBundle(target="cuda").manifest({})
PORTABLE_BUNDLE = TinyBundle(target="portable").manifest({})


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


def test_no_threads_is_refused():
    with pytest.raises(DeviceError, match=r"threads is 0; expected 1 to 1024, or None to choose"):
        GraphOptions(threads=0)


def test_an_idle_model_costs_no_processor_time(tmp_path):
    """Worker threads sleep between calls instead of polling."""
    with load(TinyBundle().write(tmp_path / "b"), threads=2) as model:
        model.generate("It", max_new_tokens=8)
        began = time.process_time()
        time.sleep(0.5)

        assert time.process_time() - began < 0.05
