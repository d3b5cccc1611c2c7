"""Are the files of a bundle the ones its manifest was written for?"""

import hashlib
from pathlib import Path

from wiola_runtime.errors import BundleError
from wiola_runtime.manifest import FileSpec, Manifest

TOKENIZER_FILE = "tokenizer.json"


def require_files(folder: Path, manifest: Manifest) -> None:
    """Check that every file named by the manifest lies in the bundle's own folder.

    Raises:
        BundleError: A name leads out of the folder, or a file is absent; the message names it.
    """
    for name in sorted({*manifest.files, manifest.graph.file, TOKENIZER_FILE}):
        if name in {".", ".."} or "/" in name or "\\" in name:
            raise BundleError(f"the manifest names {name!r}, which is no bare file name")
        if not (folder / name).is_file():
            raise BundleError(f"{folder / name} not found; copy the bundle again or export again")


def verify_files(folder: Path, manifest: Manifest) -> None:
    """Check the size and the SHA-256 of every file of the bundle.

    Raises:
        BundleError: A file is not the one that was exported, or the manifest does not vouch for
            graph, weights or tokenizer; the message names the file.
    """
    # The graph names its weights after itself; whatever lies there is loaded with it.
    weights = {path.name for path in folder.glob(f"{manifest.graph.file}*")}
    for name in sorted({manifest.graph.file, TOKENIZER_FILE, *weights}):
        if name not in manifest.files:
            raise BundleError(f"the manifest has no SHA-256 of {name}; export again")
    for name, expected in sorted(manifest.files.items()):
        _verify_file(folder / name, expected)


def _verify_file(path: Path, expected: FileSpec) -> None:
    size_bytes = path.stat().st_size
    if size_bytes != expected.size_bytes:
        raise BundleError(
            f"{path} has {size_bytes} bytes, the manifest says {expected.size_bytes}; "
            "copy the bundle again or export again"
        )
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != expected.sha256:
        raise BundleError(
            f"{path} has SHA-256 {sha256[:12]}…, the manifest says {expected.sha256[:12]}…; "
            "copy the bundle again or export again"
        )
