"""What can be counted and timed, in a registry of this server's own."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
REQUEST_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Counters, gauges and histograms, all beginning with `wiola_`."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        self.requests = Counter(
            "wiola_requests", "Requests by route and HTTP status", ("route", "status"), registry=own
        )
        self.answers = Counter(
            "wiola_answers", "Answers by what ended them", ("ended_by",), registry=own
        )
        self.prompt_tokens = Counter("wiola_prompt_tokens", "Tokens of prompts", registry=own)
        self.reused_tokens = Counter(
            "wiola_reused_tokens", "Those of them whose state was kept", registry=own
        )
        self.generated_tokens = Counter("wiola_generated_tokens", "Tokens of answers", registry=own)
        self.first_token_seconds = Histogram(
            "wiola_first_token_seconds", "From a prompt's arrival to its first token",
            buckets=FIRST_TOKEN_SECONDS, registry=own,
        )  # fmt: skip
        self.token_seconds = Histogram(
            "wiola_token_seconds", "From one token of an answer to the next",
            buckets=TOKEN_SECONDS, registry=own,
        )  # fmt: skip
        self.request_seconds = Histogram(
            "wiola_request_seconds", "From a request's arrival to the end of its answer",
            ("route",), buckets=REQUEST_SECONDS, registry=own,
        )  # fmt: skip

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show a number that is read when somebody asks."""
        Gauge(f"wiola_{name}", text, registry=self._registry).set_function(read)

    def page(self) -> bytes:
        """Return everything in the text format of Prometheus."""
        return generate_latest(self._registry)
