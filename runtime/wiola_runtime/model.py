"""Open a bundle and talk to it.

Axes: B batch row, T positions, V vocabulary.
"""

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, Unpack, cast, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wiola_runtime import self_test
from wiola_runtime.batch import Prompts, generate_together, is_several
from wiola_runtime.cancel import Cancellation
from wiola_runtime.chat import Message
from wiola_runtime.config import GenerationChanges, GenerationConfig
from wiola_runtime.devices import Device
from wiola_runtime.engine import Engine
from wiola_runtime.errors import BundleError, GenerationError, SelfTestError, path_of
from wiola_runtime.generate import generate
from wiola_runtime.graph import Graph
from wiola_runtime.manifest import Manifest
from wiola_runtime.opening import GraphOptions
from wiola_runtime.reply import Piece, Result
from wiola_runtime.row import Row
from wiola_runtime.sampling import sampler
from wiola_runtime.scoring import check_ids, score
from wiola_runtime.session import Content, Overflow, Pieces, Session
from wiola_runtime.text import Tokenizer
from wiola_runtime.verify import TOKENIZER_FILE, require_files, verify_files


def load(  # noqa: PLR0913 - keywords that few give
    bundle: str | Path,
    *,
    device: Device = "cpu",
    threads: int | None = None,
    verify: bool = True,
    allow_spinning: bool | None = None,
    huge_pages: bool = True,
    provider_options: Mapping[str, str | float] | None = None,
) -> "Model":
    """Open a bundle.

    Args:
        bundle: The exported folder.
        device: "cuda" is an error where it cannot be had, "auto" then warns and takes the CPU.
        threads: None takes the physical cores that this process may use.
        verify: Whether to check the SHA-256 of every file first.
        allow_spinning: Whether idle threads poll for work; None lets them for 200 µs.
        huge_pages: Whether to ask Linux for pages of 2 MiB under the weights.
        provider_options: For ONNX Runtime's CUDA provider, e.g. `{"device_id": 1}`.

    Raises:
        BundleError: The folder is damaged, incomplete, or needs a newer runtime.
        DeviceError: The device or ONNX Runtime cannot be had, or not with these options.
    """
    began, folder = time.perf_counter(), path_of(bundle, "bundle", "a folder", BundleError)
    manifest = Manifest.read(folder)
    require_files(folder, manifest)
    if verify:
        verify_files(folder, manifest)
    tokenizer = Tokenizer.read(folder / TOKENIZER_FILE, manifest.tokens)
    options = GraphOptions(
        device=device,
        threads=threads,
        allow_spinning=allow_spinning,
        huge_pages=huge_pages,
        provider_options=provider_options or {},
    )
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
        self._engine = Engine(graph, manifest, tokenizer)

    @property
    def defaults(self) -> GenerationConfig:
        """What a reply is made with where nothing is chosen: the bundle's generation_config."""
        return self._engine.defaults

    @property
    def engine(self) -> Engine:
        """What a host needs that decodes by itself, as a server does."""
        return self._engine

    def session(self, *, overflow: Overflow = "error") -> Session:
        """Begin a conversation.

        Args:
            overflow: What happens to one that leaves no room for a reply: an error, or the
                oldest turns are forgotten ("truncate").
        """
        return Session(self._engine, overflow)

    def restore(self, path: str | Path) -> Session:
        """Go on with a conversation that `Session.save` wrote.

        Raises:
            SessionError: The file is absent, no saved session, damaged, or of another bundle.
        """
        return Session.restore(self._engine, path)

    @overload
    def generate(
        self,
        prompt: Content,
        config: GenerationConfig | None = None,
        *,
        cancel: Cancellation | None = None,
        on_text: Callable[[str], object] | None = None,
        **changes: Unpack[GenerationChanges],
    ) -> Result: ...

    @overload
    def generate(
        self,
        prompt: Prompts,
        config: GenerationConfig | None = None,
        *,
        cancel: Cancellation | None = None,
        **changes: Unpack[GenerationChanges],
    ) -> list[Result]: ...

    def generate(
        self,
        prompt: Content | Prompts,
        config: GenerationConfig | None = None,
        *,
        cancel: Cancellation | None = None,
        on_text: Callable[[str], object] | None = None,
        **changes: Unpack[GenerationChanges],
    ) -> Result | list[Result]:
        """Continue a prompt, or several together, and return the whole replies.

        A prompt is text, or token ids that are taken as they are; an empty one starts from the
        model's first token. Each of several prompts gets the reply that it gets alone. See
        `Session.generate` for the arguments and `GenerationConfig` for the fields.

        Raises:
            GenerationError: An argument is out of its range.
            CapacityError: A prompt leaves no room for a reply.
        """
        if is_several(prompt):
            chosen = self._engine.config(config, changes)
            if on_text is not None or chosen.draft_tokens:
                option = "draft_tokens" if on_text is None else "on_text"
                raise GenerationError(f"{option} takes one prompt; give several one by one")
            return generate_together(self._engine, prompt, chosen, cancel)
        return self.session().generate(
            cast("Content", prompt), config, cancel=cancel, on_text=on_text, **changes
        )

    def chat(
        self,
        messages: Sequence[Message],
        config: GenerationConfig | None = None,
        *,
        cancel: Cancellation | None = None,
        on_text: Callable[[str], object] | None = None,
        **changes: Unpack[GenerationChanges],
    ) -> Result:
        """Answer a conversation; see `Session.stream_chat`.

        Raises:
            ChatError: The bundle has no chat format, or it refuses these messages.
            CapacityError: They leave no room for an answer.
        """
        session = self.session()
        return session.chat(messages, config, cancel=cancel, on_text=on_text, **changes)

    def stream(
        self,
        prompt: Content,
        config: GenerationConfig | None = None,
        *,
        cancel: Cancellation | None = None,
        **changes: Unpack[GenerationChanges],
    ) -> Pieces:
        """Continue a prompt piece by piece; the last piece carries the `Result`.

        See `Session.stream`; closing the iterator ends the work.
        """
        return self.session().stream(prompt, config, cancel=cancel, **changes)

    def astream(
        self,
        prompt: Content,
        config: GenerationConfig | None = None,
        **changes: Unpack[GenerationChanges],
    ) -> AsyncGenerator[Piece, None]:
        """Do what `stream` does on a thread of its own; leaving the loop ends the work."""
        return self.session().astream(prompt, config, **changes)

    def chat_ids(self, messages: Sequence[Message], *, replies: bool = True) -> list[int]:
        """Return a conversation as token ids, the assistant's turn begun at the end.

        Raises:
            ChatError: The bundle has no chat format, or it refuses these messages.
        """
        return self._engine.chat.ids(messages, replies=replies)

    def logits(self, token_ids: ArrayLike) -> NDArray[np.float32]:
        """Return the logits after every token: (T, V) for ids (T,), (B, T, V) for ids (B, T).

        Raises:
            GenerationError: The ids are none, no integers, or outside the vocabulary.
            CapacityError: T is more than the context.
        """
        ids = check_ids(token_ids, self.manifest)
        scores = score(self._engine.graph, self.manifest, np.atleast_2d(ids))
        return scores[0] if ids.ndim == 1 else scores

    def self_test(self) -> self_test.SelfTestReport:
        """Reproduce the golden logits and the golden reply of the manifest.

        Raises:
            SelfTestError: The bundle was exported without golden values, or they are damaged.
        """
        golden = self.manifest.self_test
        if golden is None:
            raise SelfTestError(f"bundle {self.manifest.name} has no self-test; export again")
        self_test.check(golden, self.manifest)
        logits = self.logits([*golden.prompt_ids, *golden.token_ids])
        greedy_ids = generate(
            Row(self._engine.graph),
            golden.prompt_ids,
            pick=sampler(GenerationConfig(), vocab_size=self.manifest.vocab_size),
            max_new_tokens=len(golden.token_ids),
        )
        return self_test.compare(golden, logits, list(greedy_ids))

    def close(self) -> None:
        """Release the graph and its files; a second call does nothing."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
