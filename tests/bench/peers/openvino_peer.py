"""Time OpenVINO GenAI: python openvino_peer.py FOLDER [PROPERTY=VALUE ...] WORKLOAD_JSON."""

import json
import sys
import time
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree as ET

import figures
import numpy as np
import openvino as ov
import openvino_genai

IMPORTED_AT = time.time()
TYPES = {"i8": 1, "u8": 1, "i4": 0.5, "u4": 0.5, "f16": 2, "f32": 4, "bf16": 2}


class Engine:
    """The pipeline's own loop; a step hands out what a callback was given meanwhile."""

    def __init__(self, folder, threads, options):
        if threads:
            options = {"INFERENCE_NUM_THREADS": threads, **options}
        # A prompt that came before would be answered from memory.
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.LLMPipeline(
            folder, "CPU", scheduler_config=scheduler, **options
        )

    def reply(self, tokens, new_tokens):
        """Return when each new token was there."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        times = []

        def note(_token):
            times.append(time.perf_counter())
            return openvino_genai.StreamingStatus.RUNNING

        inputs = openvino_genai.TokenizedInputs(
            ov.Tensor(np.array([tokens], np.int64)), ov.Tensor(np.ones((1, len(tokens)), np.int64))
        )
        self._pipeline.generate(inputs, config, Streamer(note))
        return times


class Streamer(openvino_genai.StreamerBase):
    """Notes tokens as they come, without making text of them."""

    def __init__(self, note):
        super().__init__()
        self._note = note

    def write(self, tokens):
        for token in tokens if isinstance(tokens, list) else [tokens]:
            status = self._note(token)
        return status

    def end(self):
        """Nothing is held back."""


def weight_bytes(path):
    """Add up the constants of the graph; the table of a tied head is read as the head."""
    data = ET.parse(path).getroot().iter("data")
    constants = [d for d in data if d.get("element_type") in TYPES and d.get("size")]
    return sum(int(constant.get("size")) for constant in constants)


def main(folder, *arguments):
    *properties, workload = arguments
    workload = json.loads(workload)
    options = dict(text.split("=", 1) for text in properties)
    began = time.perf_counter()
    engine = Engine(folder, workload["threads"], options)
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    figures.measure(
        workload,
        engine.reply,
        vocab_size=config["vocab_size"],
        imported_at=IMPORTED_AT,
        load_seconds=time.perf_counter() - began,
        weight_bytes=weight_bytes(Path(folder) / "openvino_model.xml"),
        versions={name: metadata.version(name) for name in ("openvino-genai", "openvino")},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
