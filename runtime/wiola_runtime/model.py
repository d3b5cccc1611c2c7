"""Open a bundle and talk to it.

Axes: B batch row, T positions, V vocabulary.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wiola_runtime import self_test
from wiola_runtime.devices import Device
from wiola_runtime.errors import (
    CapacityError,
    GenerationError,
    SelfTestError,
    WiolaRuntimeError,
)
from wiola_runtime.generate import generate
from wiola_runtime.graph import Graph, GraphOptions
from wiola_runtime.manifest import Manifest
from wiola_runtime.reply import Piece, Request, Result, reply
from wiola_runtime.sampling import Sampling, sampler
from wiola_runtime.scoring import Row, check_ids, score
from wiola_runtime.text import Tokenizer
from wiola_runtime.verify import TOKENIZER_FILE, require_files, verify_files


def load(
    bundle: str | Path,
    *,
    device: Device = "cpu",
    threads: int | None = None,
    verify: bool = True,
    allow_spinning: bool = False,
) -> "Model":
    """Open a bundle.

    Args:
        bundle: The exported folder.
        device: "cuda" is an error where it cannot be had, "auto" then warns and takes the CPU.
        threads: None takes the physical cores that this process may use.
        verify: Whether to check the SHA-256 of every file first.
        allow_spinning: Whether idle threads poll for work instead of sleeping.

    Raises:
        BundleError: The folder is damaged, incomplete, or needs a newer runtime.
        DeviceError: The device or ONNX Runtime cannot be had.
    """
    began = time.perf_counter()
    folder = Path(bundle)
    manifest = Manifest.read(folder)
    require_files(folder, manifest)
    if verify:
        verify_files(folder, manifest)
    tokenizer = Tokenizer.read(folder / TOKENIZER_FILE, manifest.tokens)
    options = GraphOptions(device=device, threads=threads, allow_spinning=allow_spinning)
    graph = Graph(folder, manifest, options)
    return Model(manifest, tokenizer, graph, load_seconds=time.perf_counter() - began)


class Model:
    """An opened bundle. Calls share nothing but the weights: each has its own state.

    Attributes:
        manifest: What the bundle says about itself.
        tokenizer: Text to token ids and back.
        device: "cpu" or "cuda": where the graph really runs.
        provider: ONNX Runtime's name of it.
        load_seconds: Time that `load` took.
    """

    def __init__(
        self, manifest: Manifest, tokenizer: Tokenizer, graph: Graph, *, load_seconds: float
    ) -> None:
        self.manifest = manifest
        self.tokenizer = tokenizer
        self.device = graph.device
        self.provider = graph.provider
        self.load_seconds = load_seconds
        self._graph: Graph | None = graph

    def generate(  # noqa: PLR0913 - the public call spells out its options
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
    ) -> Result:
        """Continue a prompt and return the whole reply; see `stream`."""
        pieces = self.stream(
            prompt,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            stop=stop,
        )
        return next(piece.result for piece in pieces if piece.result is not None)

    def stream(  # noqa: PLR0913 - the public call spells out its options
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
    ) -> Iterator[Piece]:
        """Continue a prompt piece by piece; the last piece carries the `Result`.

        A prompt is text, or token ids that are taken as they are; an empty one starts from the
        model's first token. A stop string is not returned, nor anything after it. `Sampling`
        explains the numbers. Closing the iterator ends the work; the model stays usable.

        Raises:
            GenerationError: An argument is out of its range; said at the call.
            CapacityError: The prompt leaves no room for a reply; said at the call.
        """
        sampling = Sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        )
        request = Request(
            prompt_ids=self._prompt_ids(prompt),
            max_new_tokens=max_new_tokens,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            sampling=sampling.seeded(),
        )
        return reply(self._opened(), self.manifest, self.tokenizer, request)

    def logits(self, token_ids: ArrayLike) -> NDArray[np.float32]:
        """Return the logits after every token: (T, V) for ids (T,), (B, T, V) for ids (B, T).

        Raises:
            GenerationError: The ids are none, no integers, or outside the vocabulary.
            CapacityError: T is more than the context.
        """
        ids = check_ids(token_ids, self.manifest)
        scores = score(self._opened(), self.manifest, np.atleast_2d(ids))
        return scores[0] if ids.ndim == 1 else scores

    def self_test(self) -> self_test.SelfTestReport:
        """Reproduce the golden logits and the golden reply of the manifest.

        Raises:
            SelfTestError: The bundle was exported without golden values.
        """
        golden = self.manifest.self_test
        if golden is None:
            raise SelfTestError(f"bundle {self.manifest.name} has no self-test; export again")
        logits = self.logits([*golden.prompt_ids, *golden.token_ids])
        greedy_ids = generate(
            Row(self._opened()),
            golden.prompt_ids,
            pick=sampler(Sampling(), vocab_size=self.manifest.vocab_size),
            max_new_tokens=len(golden.token_ids),
        )
        return self_test.compare(golden, logits, list(greedy_ids))

    def close(self) -> None:
        """Release the graph and its files; a second call does nothing."""
        self._graph = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _opened(self) -> Graph:
        if self._graph is None:
            raise WiolaRuntimeError(f"model {self.manifest.name} is closed; load it again")
        return self._graph

    def _prompt_ids(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        if len(ids) == 0:
            if self.manifest.tokens.bos_id is None:
                raise GenerationError(
                    "the prompt is empty and the model has no token to start from; "
                    "give at least one token"
                )
            ids = (self.manifest.tokens.bos_id,)
        checked = check_ids(ids, self.manifest)
        if checked.ndim != 1:
            raise GenerationError(f"prompt has {checked.ndim} axes; expected token ids of one text")
        if checked.size >= self.manifest.context_length:
            raise CapacityError(
                f"the prompt has {checked.size} tokens, the context "
                f"{self.manifest.context_length}; shorten the prompt to leave room for a reply"
            )
        return tuple(checked.tolist())
