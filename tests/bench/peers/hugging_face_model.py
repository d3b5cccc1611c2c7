"""Write a random Llama in the Hugging Face layout, as the model builders of other engines read it.

Usage: python hugging_face_model.py SHAPE_JSON TOKENIZER_JSON OUT (in an environment with torch and
transformers). The tokenizer is not used; the builders want one.
"""

import json
import sys

import torch
import transformers  # noqa: TID251  in the environment of another engine


def main(shape, tokenizer, out):
    shape = json.loads(shape)
    context = shape.pop("context_length")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **shape, max_position_embeddings=context, tie_word_embeddings=True, eos_token_id=2
    )
    model = transformers.LlamaForCausalLM(config).to(torch.float16)
    model.save_pretrained(out)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=tokenizer, eos_token="<eos>")
    fast.save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
