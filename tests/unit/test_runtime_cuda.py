"""The same loop with its buffers on a GPU; skipped where there is none."""

import importlib.util

import numpy as np
import pytest
from support.tiny_bundle import TinyBundle, vocab_size

from wiola_runtime import DeviceError, load
from wiola_runtime.row import Row

IDS = np.random.default_rng(0).integers(0, vocab_size(), 300)


def cuda_is_there():
    if importlib.util.find_spec("onnxruntime") is None:
        return False
    import onnxruntime  # noqa: PLC0415 - absent from some environments of this suite

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not cuda_is_there(), reason="needs a CUDA device and onnxruntime-gpu"),
]


@pytest.fixture(scope="module", params=["shared", "growing"])
def opened(request, tmp_path_factory):
    """Return (model on the GPU, oracle logits of IDS); a growing cache is in float32."""
    dtype = {"shared": "float16", "growing": "float32"}[request.param]
    target = {"shared": "cuda", "growing": "portable"}[request.param]
    bundle = TinyBundle(cache=request.param, cache_dtype=dtype, target=target)
    with load(bundle.write(tmp_path_factory.mktemp("gpu") / "b"), device="cuda") as model:
        yield model, bundle.oracle(IDS)


def test_the_gpu_really_runs(opened):
    result = opened[0].generate("It is", max_new_tokens=4)

    assert (result.device, result.provider) == ("cuda", "CUDAExecutionProvider")


@pytest.mark.parametrize("chunk", [1, 7, 300])
def test_chunks_give_the_oracles_logits(opened, chunk):
    """The capacity grows past 256 tokens on the way."""
    model, expected = opened
    row = Row(model._engine.graph)
    starts = range(0, IDS.size, chunk)

    logits = np.stack([row.step(IDS[start : start + chunk]).copy() for start in starts])

    ends = [min(start + chunk, IDS.size) - 1 for start in starts]
    np.testing.assert_allclose(logits, expected[ends], atol=5e-2)


def test_all_positions_give_the_oracles_logits(opened):
    model, expected = opened

    np.testing.assert_allclose(model.logits(IDS), expected, atol=5e-2)


@pytest.mark.parametrize("options", [{"devise_id": 0}, {"device_id": 99}])
def test_options_that_the_provider_refuses_are_named(tmp_path, options):
    folder = TinyBundle(cache_dtype="float16", target="cuda").write(tmp_path / "b")

    with pytest.raises(DeviceError, match=rf"^provider option {next(iter(options))}="):
        load(folder, device="cuda", provider_options=options)


def test_options_that_the_provider_takes_are_those_it_has(tmp_path):
    folder = TinyBundle(cache_dtype="float16", target="cuda").write(tmp_path / "b")
    options = {"device_id": 0, "gpu_mem_limit": 2**30, "use_tf32": False}

    with load(folder, device="cuda", provider_options=options) as model:
        assert model.generate("It", max_new_tokens=2).device == "cuda"
