"""Time llama.cpp: python llama_cpp_peer.py MODEL.gguf WORKLOAD_JSON."""

import ctypes
import json
import sys
import time
from importlib import metadata
from pathlib import Path

import figures
import llama_cpp
import numpy as np

IMPORTED_AT = time.time()


class Engine:
    def __init__(self, path, threads):
        llama_cpp.llama_backend_init()
        silent = llama_cpp.llama_log_callback(lambda *_: None)
        self._silent = silent  # kept: llama.cpp calls it as long as it lives
        llama_cpp.llama_log_set(silent, None)
        options = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = 2048, 512, 512
        context.n_threads = context.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)

    def prefill(self, tokens):
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_clear(memory, False)
        token = None
        for start in range(0, len(tokens), 512):
            token = self._feed(tokens[start : start + 512])
        return token

    def step(self, token):
        return self._feed([token])

    def _feed(self, tokens):
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        batch = llama_cpp.llama_batch_get_one(array, len(tokens))
        if llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        found = llama_cpp.llama_get_logits_ith(self._context, -1)
        pointer = ctypes.cast(found, ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(pointer, (self.vocab_size,)).argmax())


def main(path, workload):
    workload = json.loads(workload)
    began = time.perf_counter()
    engine = Engine(path, workload["threads"] or 2)
    figures.measure(
        workload,
        figures.by_steps(engine),
        vocab_size=engine.vocab_size,
        imported_at=IMPORTED_AT,
        load_seconds=time.perf_counter() - began,
        weight_bytes=Path(path).stat().st_size,
        versions={"llama-cpp-python": metadata.version("llama-cpp-python")},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
