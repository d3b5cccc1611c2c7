"""Time exports beside other quantizers: python export_times.py VARIANT FOLDER [ROUNDS].

Each reads floats of 16 bits from disk, random ones, and writes 4- and 8-bit models, one after the
other in every round; medians of seconds and of peak memory are printed. FOLDER is what
`peers/prepare.py` has set up for llama.cpp and onnxruntime-genai. Linux only.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "peers"))

from prepare import HERE, genai
from shape import shape_like
from support.random_checkpoint import write_random_checkpoint


def main(variant, folder, rounds="3"):
    folder = Path(folder).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        jobs = dict(commands(variant, folder, Path(scratch)))
        found = {name: [] for name in jobs}
        for _ in range(int(rounds)):
            for name, command in jobs.items():
                found[name].append(timed(command, Path(scratch) / "log"))
                print(name, found[name][-1], file=sys.stderr, flush=True)
    for name, pairs in found.items():
        seconds, peak = (median(column) for column in zip(*pairs, strict=True))
        print(f"| {variant} | {name} | {seconds:.1f} s | {peak / 1e9:.2f} GB |")


def commands(variant, folder, scratch):
    """Yield names and commands; what they read is written before."""
    out = scratch / "out"
    checkpoint = write_random_checkpoint(scratch / "checkpoint", variant)
    exporting = ("wiola-export", "--checkpoint", checkpoint, "--calibration", "none", "--quiet")
    for precision in ("int8", "int4"):
        what = ("--no-report", "--force", f"--{precision}", "--out", scratch / "bundle")
        yield f"wiola-export {precision}", (*exporting, *what)
    places = {
        "python": folder / "onnxruntime-genai.env/bin/python",
        "llama": folder / variant / "llama",
        "out": out,
    }
    for precision in ("int8", "int4"):
        building = (part.format(**places) for part in genai(precision))
        yield f"onnxruntime-genai {precision}", tuple(building)
    model = (folder / "llama.cpp.env/bin/python", HERE / "llama_cpp_model.py")
    shape = json.dumps(dataclasses.asdict(shape_like(variant)))
    half = scratch / "half.gguf"
    subprocess.run((*model, shape, "F16", half), check=True)
    for kind in ("Q8_0", "Q4_0"):
        yield f"llama.cpp {kind}", (*model, half, kind, scratch / "model.gguf")


def timed(command, log):
    """Run a command; return its seconds and its peak memory in bytes."""
    began = time.perf_counter()
    with log.open("wb") as file:
        process = subprocess.Popen(list(map(str, command)), stdout=file, stderr=file)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{command[0]} ended with status {status}: {log.read_text()[-500:]}")
    return time.perf_counter() - began, usage.ru_maxrss * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
