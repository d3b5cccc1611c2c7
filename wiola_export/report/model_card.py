"""The bundle's own README: what it is, how to run it, what is in it."""

from collections.abc import Iterator

from wiola_export.report.figures import size
from wiola_export.report.report import Report
from wiola_export.report.verdict import verdict
from wiola_runtime.manifest import Manifest

FILE_NAME = "README.md"
RANDOM_WARNING = (
    "> **Random weights.** This bundle measures size and speed on a machine; its text means "
    "nothing and no accuracy can be stated."
)
_PURPOSES = {
    "tokenizer.json": "text to token ids and back",
    "plan.json": "the format of every matrix, to export another checkpoint alike",
    "report.json": "the measurements, for machines",
    "report.md": "the measurements, to read",
    "report.html": "the measurements, to look at",
}


def model_card(manifest: Manifest, report: Report | None) -> str:
    """Write a bundle's README.md; a bundle of random weights warns in its first line."""
    warning = [RANDOM_WARNING] if manifest.weights == "random" else []
    sections = [
        *warning,
        f"# {manifest.name}",
        _what(manifest),
        "## Run it",
        _how_to_run(manifest),
        *_measured(report),
        "## Files",
        "\n".join(_files(manifest)),
        "## Licence",
        _licence(manifest),
    ]
    return "\n\n".join(sections) + "\n"


def _what(manifest: Manifest) -> str:
    source = manifest.source.checkpoint_sha256
    origin = (
        f"a checkpoint with SHA-256 `{source}`"
        if source
        else f"random weights with seed {manifest.source.seed}"
    )
    size_name = f", size {manifest.variant}" if manifest.variant else ""
    return (
        f"A Wiola language model (family `{manifest.family}`{size_name}) as an ONNX graph with "
        f"{manifest.precision.upper()} weights for the `{manifest.target}` target, exported by "
        f"wiola-export from {origin}. It reads up to {manifest.context_length:,} tokens of a "
        f"vocabulary of {manifest.vocab_size:,} and needs ONNX Runtime "
        f"{manifest.graph.minimum_onnxruntime} or newer."
    )


def _how_to_run(manifest: Manifest) -> str:
    device = "cuda" if manifest.target == "cuda" else "cpu"
    return f"""```
pip install "wiola-runtime[{device}]"
wiola-run {manifest.name} --device {device} --prompt "It is a truth" --max-new-tokens 64
```

```python
import wiola_runtime as wr

model = wr.load("{manifest.name}", device="{device}")
print(model.generate("It is a truth", max_new_tokens=64).text)
```

`manifest.json` describes every input, output and state of the graph, so any host with ONNX
Runtime can drive it without the runtime above."""


def _measured(report: Report | None) -> Iterator[str]:
    if report is not None:
        yield "## Measured"
        yield f"{verdict(report)} The whole report is in `report.html`, and as text in `report.md`."


def _files(manifest: Manifest) -> Iterator[str]:
    yield "| file | size | what |"
    yield "|---|---:|---|"
    for name, file in sorted(manifest.files.items()):
        if name != FILE_NAME:
            purpose = "the graph" if name == manifest.graph.file else _PURPOSES.get(name)
            yield f"| `{name}` | {size(file.size_bytes)} | {purpose or _kind(name)} |"
    yield "| `manifest.json` | | the contract, and SHA-256 of every file |"


def _kind(name: str) -> str:
    return "the weights" if name.endswith((".data", ".bin")) else ""


def _licence(manifest: Manifest) -> str:
    if manifest.weights == "random":
        return "The weights are random numbers that wiola-export drew from a seed."
    return (
        "Exporting changes nothing about rights: the weights and the tokenizer stay under the "
        "terms of the checkpoint's owner. Read those before you pass this bundle on."
    )
