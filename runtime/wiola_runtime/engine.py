"""What all replies of one opened bundle share."""

from collections.abc import Collection, Sequence

import numpy as np

from wiola_runtime.chat import Chat
from wiola_runtime.config import GenerationChanges, GenerationConfig
from wiola_runtime.errors import CapacityError, ChatError, GenerationError, WiolaRuntimeError
from wiola_runtime.grammar import Grammar, Vocabulary
from wiola_runtime.graph import Graph
from wiola_runtime.manifest import Manifest
from wiola_runtime.scoring import check_ids
from wiola_runtime.text import Tokenizer


class Engine:
    """An opened graph with its manifest and its tokenizer.

    Attributes:
        defaults: What a reply is made with where nothing is chosen.
    """

    def __init__(self, graph: Graph, manifest: Manifest, tokenizer: Tokenizer) -> None:
        self._graph: Graph | None = graph
        self.manifest = manifest
        self.tokenizer = tokenizer
        self._chat: Chat | None = None
        self._vocabulary: Vocabulary | None = None
        self.defaults = GenerationConfig.from_defaults(manifest.generation_defaults)

    @property
    def graph(self) -> Graph:
        """The graph.

        Raises:
            WiolaRuntimeError: The model has been closed.
        """
        if self._graph is None:
            raise WiolaRuntimeError(f"model {self.manifest.name} is closed; load it again")
        return self._graph

    @property
    def chat(self) -> Chat:
        """The bundle's chat format.

        Raises:
            ChatError: It has none, or one that needs what is not installed.
        """
        if self._chat is None:
            spec = self.manifest.chat
            if spec is None:
                raise ChatError(
                    f"bundle {self.manifest.name} has no chat format: the exporter found no chat "
                    "template that works, and no tokens for turns; continue texts with generate"
                )
            self._chat = Chat(spec, self.manifest.tokens, self.tokenizer)
        return self._chat

    def grammar(self, config: GenerationConfig, end_ids: Collection[int]) -> Grammar | None:
        """Return what a reply is bound to, if it is; some ids end it.

        Raises:
            GenerationError: llguidance is not installed, or refuses schema or expression.
        """
        if config.json_schema is None and config.regex is None:
            return None
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(self.tokenizer, self.manifest.vocab_size)
        return Grammar(self._vocabulary, config, end_ids)

    def close(self) -> None:
        """Release the graph and its files; a second call does nothing."""
        self._graph = None

    def config(
        self, config: GenerationConfig | None, changes: GenerationChanges
    ) -> GenerationConfig:
        """Return a config, or the bundle's defaults, with some fields replaced; seeded."""
        return (config or self.defaults).changed(changes).seeded()

    def ids_of(self, content: str | Sequence[int], *, begins: bool) -> list[int]:
        """Return the token ids of a text, or ids as they are once they are checked.

        Args:
            content: Text or ids.
            begins: Whether a text begins here, which then has at least one token.

        Raises:
            GenerationError: The text is no Unicode, the ids are not of this vocabulary, or there
                is nothing to begin with.
        """
        given: object = content
        if not isinstance(given, str | Sequence) and not (
            isinstance(given, np.ndarray) and given.ndim
        ):
            raise GenerationError(f"prompt is {given!r}; expected text or token ids")
        if isinstance(content, str):
            ids = self.tokenizer.encode(content, begins=begins)
        else:
            ids = self._checked(content)
        if ids or not begins:
            return ids
        if self.manifest.tokens.bos_id is None:
            raise GenerationError(
                "the prompt is empty and the model has no token to start from; "
                "give at least one token"
            )
        return [self.manifest.tokens.bos_id]

    def longest_prompt(self, config: GenerationConfig) -> int:
        """Return how long a text may be that leaves room for a reply: a quarter is enough."""
        context = self.manifest.context_length
        return context - max(min(config.max_new_tokens, context // 4), 1)

    def require_room(self, tokens: int, *, grown: bool = False) -> None:
        """Check that a reply would have room behind so many tokens, given at once or grown to.

        Raises:
            CapacityError: It would not.
        """
        context = self.manifest.context_length
        if tokens < context:
            return
        what, way = "the prompt", "shorten the prompt to leave room for a reply"
        if grown:
            what, way = "the conversation", "rewind it, or open sessions with overflow='truncate'"
        raise CapacityError(f"{what} has {tokens} tokens, the context {context}; {way}")

    def _checked(self, ids: Sequence[int]) -> list[int]:
        if len(ids) == 0:
            return []
        checked = check_ids(ids, self.manifest, any_length=True)
        if checked.ndim != 1:
            raise GenerationError(f"prompt has {checked.ndim} axes; expected token ids of one text")
        return [int(token_id) for token_id in checked]
