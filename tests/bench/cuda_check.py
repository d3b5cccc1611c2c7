"""Compare a CUDA bundle on the GPU with the same bundle on the CPU, and time both.

Exports the demo and a random 120m for CUDA, runs their self-tests (recorded on the CPU) on the
GPU, compares logits and greedy tokens, and prints tokens a second. Needs onnxruntime-gpu.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import wiola_runtime as wr

PROMPT = "It is a truth universally acknowledged"
TOLERANCE = 0.1  # of logits that reach about 10; float16 activations on both sides


def main():
    if "CUDAExecutionProvider" not in _providers():
        print("no CUDA provider here; run this check on a machine with a GPU", file=sys.stderr)
        return 2
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for variant, precision in (("demo", "fp16"), ("demo", "int8"), ("120m", "int4")):
            bundle = Path(folder) / f"{variant}-{precision}"
            command = ["wiola-export", "--variant", variant, f"--{precision}"]
            command += ["--target", "cuda", "--no-report", "--out", str(bundle), "--quiet"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            worst = max(worst, _compare(bundle))
    return 0 if worst <= TOLERANCE else 1


def _compare(bundle):
    with wr.load(bundle, device="cuda") as gpu, wr.load(bundle, device="cpu") as cpu:
        gpu.self_test().require()
        ids = cpu.tokenizer.encode(PROMPT)
        difference = float(np.abs(gpu.logits(ids) - cpu.logits(ids)).max())
        on_gpu = gpu.generate(PROMPT, max_new_tokens=128)
        on_cpu = cpu.generate(PROMPT, max_new_tokens=128)
    same = np.equal(on_gpu.token_ids[:32], on_cpu.token_ids[:32]).all()
    rates = [r.timings.decode_tokens_per_second for r in (on_gpu, on_cpu)]
    print(
        f"{bundle.name}: {on_gpu.provider}, max |logit difference| {difference:.3g}, first 32 "
        f"greedy tokens {'equal' if same else 'differ'}, {rates[0]:.0f} tokens/s on the GPU, "
        f"{rates[1]:.0f} on the CPU"
    )
    return difference


def _providers():
    import onnxruntime

    return onnxruntime.get_available_providers()


if __name__ == "__main__":
    sys.exit(main())
