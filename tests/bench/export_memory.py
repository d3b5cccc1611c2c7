"""Time exports of random bfloat16 checkpoints and print their peak memory.

Usage: python export_memory.py [VARIANT:PRECISION[:WINDOWS[:LAYERS]] ...]
With WINDOWS the weights are calibrated on so many windows of 256 tokens (0: not calibrated); with
LAYERS the model is cut to so many. Default: 360m:int4 1.5b:int4.
Linux only: the peak is that of the largest process, as the kernel counts it.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.random_checkpoint import write_random_checkpoint


def main(jobs):
    for job in jobs or ("360m:int4", "1.5b:int4"):
        variant, precision, windows, layers = [*job.split(":"), *("0", "0")][:4]
        text = ["--calibration-windows", windows] if int(windows) else ["--calibration", "none"]
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = write_random_checkpoint(Path(folder) / variant, variant, int(layers))
            command = ["wiola-export", "--checkpoint", str(checkpoint), f"--{precision}", *text]
            command += ["--out", str(Path(folder) / "bundle"), "--no-report", "--quiet"]
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - began
        # The children's maximum never falls, so give larger models last.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"{job}: {seconds:.0f} s, peak {peak:,.0f} MiB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
