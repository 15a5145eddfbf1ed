"""What becomes a request's spans: who called it, when it came to what, how many tokens it took.

    request   ├──────────────────────────────────────────────────┤   from the head to the last byte
    queue         ├────┤                                              until the first step it is in
    prefill            ├──────────┤                                   until its first token
    decode                        ├───────────────────────────┤       until its last

Attributes have the names of OpenTelemetry's conventions for generative models where those have one,
and ``kvikk.`` in front where they have none. Nothing that was said is in any of them.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvikk.engine.requests import Output, Timings
from kvikk.wire.generation import GenerationFields
from kvikk.wire.ledger import RequestLedger

Attribute = str | bool | int | float | Sequence[str]


@dataclass(slots=True)
class RequestTrace:
    """One request, on its way and after. Moments are in nanoseconds since 1970.

    ``context`` are the headers that name its parent. ``error`` says in a word what went wrong.
    """

    operation: str
    context: Mapping[str, str]
    began_ns: int = field(default_factory=time.time_ns)
    ended_ns: int = 0
    model: str = ""
    attributes: dict[str, Attribute] = field(default_factory=dict)
    error: str | None = None
    _phases: Timings | None = None
    # What to add to a moment on the monotonic clock.
    _offset_ns: int = field(default_factory=lambda: time.time_ns() - time.monotonic_ns())

    @property
    def name(self) -> str:
        """What the request's own span is called."""
        return f"{self.operation} {self.model}".rstrip()

    @property
    def phases(self) -> list[tuple[str, int, int]]:
        """Name, beginning and end of each that was reached; the last one may end with all."""
        timings = self._phases
        if timings is None:
            return []
        moments = (timings.arrived_s, timings.scheduled_s, timings.first_token_s)
        reached = [self._offset_ns + int(moment * 1e9) for moment in moments if moment is not None]
        finished_s = timings.finished_s
        end = self.ended_ns if finished_s is None else self._offset_ns + int(finished_s * 1e9)
        names = ("queue", "prefill", "decode")
        return list(zip(names, reached, [*reached[1:], max(end, reached[-1])], strict=False))

    def note_request(self, request_id: str, fields: GenerationFields) -> None:
        """The engine has taken it."""
        self.model = fields.model
        wanted: dict[str, Attribute | None] = {
            "gen_ai.response.id": request_id,
            "gen_ai.request.model": fields.model,
            "gen_ai.request.stream": fields.stream,
            "gen_ai.request.max_tokens": fields.max_tokens,
            "gen_ai.request.temperature": fields.temperature,
            "gen_ai.request.top_p": fields.top_p,
            "gen_ai.request.top_k": fields.top_k or None,
            "gen_ai.request.seed": fields.seed,
            "gen_ai.request.frequency_penalty": fields.frequency_penalty or None,
            "gen_ai.request.presence_penalty": fields.presence_penalty or None,
            "gen_ai.request.choice.count": fields.choices.count
            if fields.choices.count > 1
            else None,
        }
        self.attributes |= {name: value for name, value in wanted.items() if value is not None}

    def note_answer(
        self,
        latest: Output | None,
        ledger: RequestLedger | None,
        *,
        completion_tokens: int,
        finish_reasons: Sequence[str],
    ) -> None:
        """The answer is over: ``latest`` is the last that the engine said of it."""
        if latest is None:
            return
        self._phases = latest.timings
        self.attributes |= {
            "gen_ai.usage.input_tokens": latest.usage.prompt_tokens,
            "gen_ai.usage.output_tokens": completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": latest.usage.cached_tokens,
        }
        if finish_reasons:
            self.attributes["gen_ai.response.finish_reasons"] = finish_reasons
        self._note_prompts([] if ledger is None else [ledger])
        if latest.error is not None:
            self.error = "engine_error"

    def note_vectors(
        self,
        request_id: str,
        model: str,
        usage: Mapping[str, int],
        ledgers: Sequence[RequestLedger],
    ) -> None:
        """Its texts have become vectors, each by a request of its own to the engine."""
        self.model = model
        self.attributes |= {
            "gen_ai.response.id": request_id,
            "gen_ai.request.model": model,
            "gen_ai.usage.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.cache_read.input_tokens": usage["cached_tokens"],
        }
        self._note_prompts(ledgers)

    def _note_prompts(self, ledgers: Sequence[RequestLedger]) -> None:
        totals: Counter[str] = Counter()
        for ledger in ledgers:
            totals.update(ledger.by_cause)
        for cause, tokens in totals.items():
            self.attributes[f"kvikk.prompt_tokens.{cause}"] = tokens
