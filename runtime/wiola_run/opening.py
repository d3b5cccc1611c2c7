"""How a command opens a bundle: the options that all of them have."""

import argparse
from importlib import metadata
from pathlib import Path

from wiola_run.interrupts import held
from wiola_run.streams import say
from wiola_runtime import Model, load
from wiola_runtime.opening import import_onnxruntime

DONE, USER_CAN_FIX_IT = 0, 2
RANDOM_WEIGHTS = """\
**********************************************************************
*  THE WEIGHTS OF THIS BUNDLE ARE RANDOM: the text below is noise.   *
*  It measures size and speed on this machine, nothing else.         *
**********************************************************************"""


def add_opening(parser: argparse.ArgumentParser) -> None:
    """Add the bundle, and where and how it runs."""
    parser.add_argument("bundle", type=Path, help="folder that wiola-export wrote")
    parser.add_argument("--device", choices=("cpu", "cuda", "auto"), default="cpu")
    parser.add_argument(
        "--provider-option",
        type=_option,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for ONNX Runtime's CUDA provider, as device_id=1; repeatable",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="default: physical cores")
    parser.add_argument("--no-verify", action="store_true", help="skip the SHA-256 of the files")
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")


def open_model(arguments: argparse.Namespace) -> Model:
    """Open the bundle as the options say.

    Raises:
        WiolaRuntimeError: It cannot be opened so.
    """
    with held():
        import_onnxruntime()
    return load(
        arguments.bundle,
        device=arguments.device,
        threads=arguments.threads,
        verify=not arguments.no_verify,
        provider_options=dict(arguments.provider_option),
    )


def tell_of_random_weights(model: Model) -> None:
    """Say on stderr that a bundle's weights are random, if they are."""
    if model.manifest.weights == "random":
        say(RANDOM_WEIGHTS)


def _option(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is no KEY=VALUE")
    return key, value


def _version() -> str:
    try:
        return metadata.version("wiola-runtime")
    except metadata.PackageNotFoundError:
        return "(run from its sources)"
