"""Set up what people could use instead of a bundle: python prepare.py VARIANT FOLDER [PEER ...].

Every engine gets an environment of its own in FOLDER, two models of as many matmul parameters as
the variant, with 4 and 8 bits, and a file for `wiola-export bench --peer` of each, whose paths are
printed. What is there already is not made again. PEER is llama.cpp, onnxruntime-genai or openvino;
all of them otherwise. llama.cpp is compiled, which takes up to a quarter of an hour on two cores;
GCC 12 compiles its AMX code wrong, `CC=clang CXX=clang++` does not.
"""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from shape import shape_like

HERE = Path(__file__).parent
TOKENIZER = HERE.parents[2] / "wiola_export/demo/tokenizer.json"
BUILDING = ("torch", "transformers")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An engine.

    Attributes:
        packages: What its environment is made of.
        script: What measures it.
        models: Command that makes a model, by the model's name: `{python}` is the environment's,
            `{shape}` JSON, `{llama}` a folder in Hugging Face's layout, `{out}` what is made.
    """

    packages: tuple[str, ...]
    script: str
    models: dict[str, tuple[str, ...]]


def llama_cpp(kind):
    return ("{python}", str(HERE / "llama_cpp_model.py"), "{shape}", kind, "{out}")


def genai(kind):
    builder = ("{python}", "-m", "onnxruntime_genai.models.builder", "-m", "{llama}")
    return (*builder, "-o", "{out}", "-p", kind, "-e", "cpu", "-c", "{out}.cache")


def openvino(kind):
    return (
        *("{python}", "-m", "optimum.commands.optimum_cli", "export", "openvino"),
        *("--model", "{llama}", "--task", "text-generation-with-past"),
        *("--weight-format", kind, "{out}"),
    )


PEERS = {
    "llama.cpp": Peer(
        packages=("llama-cpp-python", "gguf", "numpy"),
        script="llama_cpp_peer.py",
        models={f"llama.cpp {kind}": llama_cpp(kind) for kind in ("Q4_0", "Q8_0")},
    ),
    "onnxruntime-genai": Peer(
        packages=("onnxruntime-genai", "onnx", "onnx_ir", *BUILDING),
        script="genai_peer.py",
        models={f"onnxruntime-genai {kind}": genai(kind) for kind in ("int4", "int8")},
    ),
    "openvino": Peer(
        packages=("openvino-genai", "optimum-intel", "nncf", *BUILDING),
        script="openvino_peer.py",
        models={f"OpenVINO {kind}": openvino(kind) for kind in ("int4", "int8")},
    ),
}


def main(variant, folder, *names):
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    shape = json.dumps(dataclasses.asdict(shape_like(variant)))
    for name in names or PEERS:
        peer = PEERS[name]
        python = environment(folder / f"{name}.env", peer)
        for model, command in peer.models.items():
            out = folder / variant / model.replace(" ", "-")
            if not out.exists():
                partial = out.with_name(f"{out.name}.partial")
                places = {"python": python, "shape": shape, "out": partial}
                if "{llama}" in command:
                    places["llama"] = llama(folder / variant / "llama", python, shape)
                out.parent.mkdir(parents=True, exist_ok=True)
                run(*(part.format(**places) for part in command))
                partial.rename(out)
            described = out.with_name(f"{out.name}.json")
            measuring = [str(python), str(HERE / peer.script), str(out)]
            described.write_text(json.dumps({"name": model, "command": measuring}))
            print(described)


def environment(folder, peer):
    """Return the interpreter of an environment, which is made where it is not there."""
    python = folder / "bin/python"
    if not python.exists():
        run(sys.executable, "-m", "venv", folder)
        run(python, "-m", "pip", "install", "--quiet", *peer.packages)
    return python


def llama(folder, python, shape):
    """Return a random Llama, which is made where it is not there."""
    if not folder.exists():
        run(python, HERE / "hugging_face_model.py", shape, TOKENIZER, folder)
    return folder


def run(*command):
    subprocess.run(list(map(str, command)), check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
