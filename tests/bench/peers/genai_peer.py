"""Time onnxruntime-genai: python genai_peer.py FOLDER WORKLOAD_JSON."""

import json
import sys
import time
from importlib import metadata
from pathlib import Path

import figures
import onnxruntime_genai as og

IMPORTED_AT = time.time()


class Engine:
    def __init__(self, folder, threads):
        config = og.Config(folder)
        if threads:
            options = {"session_options": {"intra_op_num_threads": threads}}
            config.overlay(json.dumps({"model": {"decoder": options}}))
        self._model = og.Model(config)
        self._generator = None

    def prefill(self, tokens):
        options = og.GeneratorParams(self._model)
        options.set_search_options(do_sample=False, max_length=2048)
        self._generator = og.Generator(self._model, options)
        self._generator.append_tokens(tokens)
        return self.step(None)

    def step(self, _token):
        # It feeds what it chose itself.
        self._generator.generate_next_token()
        return int(self._generator.get_next_tokens()[0])


def weight_bytes(path):
    """Add up what matrix products read; a table for lookups alone is not read in a step."""
    import onnx  # not among what the engine imports

    graph = onnx.load(path, load_external_data=False).graph
    read = {name for node in graph.node if node.op_type.startswith("MatMul") for name in node.input}
    lengths = (
        int(next(entry.value for entry in tensor.external_data if entry.key == "length"))
        for tensor in graph.initializer
        if tensor.name in read and tensor.external_data
    )
    return sum(lengths)


def main(folder, workload):
    workload = json.loads(workload)
    began = time.perf_counter()
    engine = Engine(folder, workload["threads"])
    config = json.loads((Path(folder) / "genai_config.json").read_text(encoding="utf-8"))
    figures.measure(
        workload,
        figures.by_steps(engine),
        vocab_size=config["model"]["vocab_size"],
        imported_at=IMPORTED_AT,
        load_seconds=time.perf_counter() - began,
        weight_bytes=weight_bytes(Path(folder) / "model.onnx"),
        versions={name: metadata.version(name) for name in ("onnxruntime-genai", "onnxruntime")},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
