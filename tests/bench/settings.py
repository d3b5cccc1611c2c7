"""Time one bundle under several settings, in turns: python settings.py BUNDLE [ROUNDS].

Each turn is a process of its own; shown are medians with extremes.
"""

import json
import subprocess
import sys
from contextlib import contextmanager
from statistics import median

SETTINGS = {
    "as it is": {},
    "small pages": {"arguments": {"huge_pages": False}},
    "threads sleep at once": {"arguments": {"allow_spinning": False}},
    "threads poll for 50 us": {"entries": {"session.intra_op.spin_duration_us": "50"}},
    "threads poll": {"arguments": {"allow_spinning": True}},
    "one thread": {"arguments": {"threads": 1}},
    "memory pattern": {"attributes": {"enable_mem_pattern": True}},
    "parallel prepacking": {"entries": {"session.prepack.enable_parallel": "1"}},
    "beside a busy program": {"busy": True},
    "beside it, threads sleep at once": {"busy": True, "arguments": {"allow_spinning": False}},
}
BUSY = (sys.executable, "-c", "while True: pass")
FIGURES = ("decode", "prefill", "load", "memory")


def main(bundle, rounds="5"):
    found = {name: [] for name in SETTINGS}
    for _ in range(int(rounds)):
        for name, setting in SETTINGS.items():
            command = [sys.executable, __file__, bundle, "--", json.dumps(setting)]
            with neighbour(setting):
                done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[name].append(json.loads(done.stdout))
    for name, turns in found.items():
        values = {figure: [turn[figure] for turn in turns] for figure in FIGURES}
        decode = values["decode"]
        print(
            f"{name}: decode {median(decode):.0f} ({min(decode):.0f}-{max(decode):.0f}) tokens/s, "
            f"prefill of 512 {median(values['prefill']):.0f} tokens/s, load "
            f"{median(values['load']):.2f} s, peak memory {median(values['memory']) / 1e6:.0f} MB"
        )


@contextmanager
def neighbour(setting):
    """Keep one processor busy, where a setting says so."""
    if not setting.get("busy"):
        yield
        return
    with subprocess.Popen(BUSY) as process:
        try:
            yield
        finally:
            process.kill()


def turn(bundle, setting):
    import wiola_runtime as wr
    from wiola_export.evaluate.speed_worker import peak_memory_bytes
    from wiola_runtime import opening

    plain = opening._native_options

    def changed(ort, options):
        native = plain(ort, options)
        for key, value in setting.get("entries", {}).items():
            native.add_session_config_entry(key, value)
        for key, value in setting.get("attributes", {}).items():
            setattr(native, key, value)
        return native

    opening._native_options = changed
    model = wr.load(bundle, verify=False, **setting.get("arguments", {}))

    def reply(length, count):
        prompt = [(7919 * i) % model.manifest.vocab_size for i in range(length)]
        return model.generate(prompt, max_new_tokens=count, ignore_eos=True).timings

    reply(128, 1)
    decode = reply(128, 129).decode_tokens_per_second
    memory = peak_memory_bytes()
    reply(512, 1)
    prefill = reply(512, 1).prefill_tokens_per_second
    figures = (decode, prefill, model.load_seconds, memory)
    print(json.dumps(dict(zip(FIGURES, figures, strict=True))))


if __name__ == "__main__":
    if "--" in sys.argv:
        turn(sys.argv[1], json.loads(sys.argv[3]))
    else:
        main(*sys.argv[1:])
