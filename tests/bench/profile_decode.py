"""Say where a decoding step goes: python profile_decode.py BUNDLE [DEPTH].

ONNX Runtime's profiler times every node; what is left of a step is its own frame, the threads'
hand-over and Python. The profiler itself costs some microseconds a node: read shares, not times.
"""

import collections
import json
import sys
import tempfile
from pathlib import Path

import wiola_runtime as wr
from wiola_runtime import opening

STEPS = 64


def main(bundle, depth="128"):
    with tempfile.TemporaryDirectory() as folder:
        plain = opening._native_options

        def profiling(ort, options):
            native = plain(ort, options)
            native.enable_profiling = True
            native.profile_file_prefix = str(Path(folder) / "decode")
            return native

        plain_seconds = step_seconds(wr.load(bundle, verify=False), int(depth))
        opening._native_options = profiling
        model = wr.load(bundle, verify=False)
        profiled_seconds = step_seconds(model, int(depth))
        events = json.loads(Path(model.engine.graph._session.end_profiling()).read_text("utf-8"))
    show(events, plain_seconds, profiled_seconds)


def step_seconds(model, depth):
    """Return the seconds of a step, the prompt's pass left out."""
    config = wr.GenerationConfig(max_new_tokens=STEPS + 1, ignore_eos=True)
    prompt = [5 + i % 1000 for i in range(depth)]
    model.generate(prompt, config)
    return model.generate(prompt, config).timings.decode_seconds / STEPS


def show(events, plain_seconds, profiled_seconds):
    runs = [e for e in events if e["name"] == "model_run"][-STEPS:]
    first = runs[0]["ts"]
    nodes = [e for e in events if e.get("cat") == "Node" and e["ts"] >= first]
    kernels = [e for e in nodes if e["name"].endswith("_kernel_time")]
    micros, counts = collections.Counter(), collections.Counter()
    for event in kernels:
        kind = event["args"]["op_name"]
        micros[kind] += event["dur"] / STEPS
        counts[kind] += 1 / STEPS
    run = sum(e["dur"] for e in runs) / STEPS
    print(
        f"a step: {plain_seconds * 1e3:.2f} ms; with the profiler {profiled_seconds * 1e3:.2f} ms"
    )
    print(
        f"in ONNX Runtime {run / 1e3:.2f} ms, of which in kernels {sum(micros.values()) / 1e3:.2f}"
    )
    for kind, value in micros.most_common(14):
        print(f"{value / run:6.1%} {value / 1e3:8.3f} ms {counts[kind]:6.0f} x {kind}")


if __name__ == "__main__":
    main(*sys.argv[1:])
