"""Write a random Llama as GGUF and quantize it, with llama.cpp's own quantizer.

Usage: python llama_cpp_model.py SOURCE TYPE OUT.gguf (in an environment with llama-cpp-python and
gguf); TYPE is F16, Q4_0 or Q8_0, SOURCE a shape as JSON or what TYPE F16 has written.
"""

import json
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

TYPES = {"Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0}


def main(source, kind, out):
    if kind == "F16":
        write_half(json.loads(source), out)
        return 0
    if not source.startswith("{"):
        return quantize(source, kind, out)
    with tempfile.TemporaryDirectory() as folder:
        half = str(Path(folder) / "f16.gguf")
        write_half(json.loads(source), half)
        return quantize(half, kind, out)


def quantize(half, kind, out):
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = TYPES[kind]
    options.nthread = 2
    return int(llama_cpp.llama_model_quantize(half.encode(), out.encode(), options))


def write_half(shape, path):
    writer = gguf.GGUFWriter(path, "llama")
    describe(writer, shape)
    rng = np.random.default_rng(0)
    for name, size in tensors(shape):
        if len(size) == 1:
            writer.add_tensor(name, np.ones(size, np.float32))
        else:
            values = rng.standard_normal(size, np.float32) * 0.02
            writer.add_tensor(name, values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe(writer, shape):
    hidden, heads = shape["hidden_size"], shape["num_attention_heads"]
    writer.add_context_length(shape["context_length"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


def tensors(shape):
    hidden, wide = shape["hidden_size"], shape["intermediate_size"]
    groups = shape["num_key_value_heads"] * (hidden // shape["num_attention_heads"])
    yield "token_embd.weight", (shape["vocab_size"], hidden)
    yield "output_norm.weight", (hidden,)
    for layer in range(shape["num_hidden_layers"]):
        block = f"blk.{layer}."
        yield f"{block}attn_norm.weight", (hidden,)
        yield f"{block}ffn_norm.weight", (hidden,)
        yield f"{block}attn_q.weight", (hidden, hidden)
        yield f"{block}attn_k.weight", (groups, hidden)
        yield f"{block}attn_v.weight", (groups, hidden)
        yield f"{block}attn_output.weight", (hidden, hidden)
        yield f"{block}ffn_gate.weight", (wide, hidden)
        yield f"{block}ffn_up.weight", (wide, hidden)
        yield f"{block}ffn_down.weight", (hidden, wide)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
