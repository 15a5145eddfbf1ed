"""Requests that have not ended, each with its answers that have not, and how they end."""

import logging
import time
from collections import Counter
from dataclasses import replace

from kvikk.engine.adapters import Adapters
from kvikk.engine.books import Books
from kvikk.engine.requests import FinishReason, Output
from kvikk.engine.scheduler import Scheduler
from kvikk.engine.sequence import Sequence
from kvikk.engine.sessions import WAKE_ROUTE, Sessions
from kvikk.engine.tiering import Tiering
from kvikk.errors import RequestError

logger = logging.getLogger(__name__)


class OpenRequests:
    """Every sequence is in here from its arrival on; ``finish`` is its only way out.

    ``num_finished`` counts requests by the reason of their last answer's end.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        books: Books | None,
        tiering: Tiering | None,
        sessions: Sessions,
        adapters: Adapters,
        block_size: int,
    ) -> None:
        self._scheduler = scheduler
        self._books = books
        self._tiering = tiering
        self._sessions = sessions
        self._adapters = adapters
        self._block_size = block_size
        self._sequences: dict[str, list[Sequence]] = {}
        self.num_sequences = 0
        self.num_finished: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sequences

    def of(self, request_id: str) -> list[Sequence]:
        """Its answers that have not ended; none where there is no such request."""
        return self._sequences.get(request_id, []).copy()

    def add(self, sequence: Sequence) -> None:
        """One more answer to be, of a new request or of one that is here."""
        self._sequences.setdefault(sequence.request.id, []).append(sequence)
        self.num_sequences += 1
        if sequence.adapter is not None:
            self._adapters.hold(sequence.adapter)

    def fail(self, sequences: list[Sequence], error: Exception) -> list[Output]:
        """End these answers; the engine lives on.

        A RequestError is the requests' own fault: their callers are told, and no log is wanted.
        """
        if isinstance(error, RequestError):
            ends = [self.finish(sequence, "error", error=str(error)) for sequence in sequences]
            return [replace(end, refusal=error) for end in ends]
        logger.error("%d requests end: the backend failed", len(sequences), exc_info=error)
        reason = f"the backend failed: {type(error).__name__}: {error}"
        return [self.finish(sequence, "error", error=reason) for sequence in sequences]

    def finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        output: Output | None = None,
        error: str | None = None,
    ) -> Output:
        """Give back all that an answer holds; its last output, which ``output`` becomes."""
        if reason in ("stop", "length"):
            self._note_use(sequence)
        self._scheduler.remove(sequence)
        self.num_sequences -= 1
        if sequence.adapter is not None:
            self._adapters.let_go(sequence.adapter)
        request_id = sequence.request.id
        others = self._sequences[request_id]
        others.remove(sequence)
        if not others:
            del self._sequences[request_id]
            self.num_finished[reason] += 1
        if self._books is not None and sequence.cached_tokens is not None:
            self._books.end(sequence.number, sequence.keys)
        if output is None:
            output = Output(
                request_id, (), "", None, sequence.usage(), sequence.timings, choice=sequence.choice
            )
        text, stop_string = output.text, None
        if sequence.text is not None and reason in ("stop", "length"):
            text += sequence.text.finish()
            stop_string = sequence.text.stop_string
        return replace(
            output,
            text=text,
            finish_reason=reason,
            timings=replace(
                sequence.timings, finished_s=time.monotonic(), machine_s=sequence.machine_s
            ),
            error=error,
            stop_string=stop_string,
            ends_request=not others,
        )

    def _note_use(self, sequence: Sequence) -> None:
        """An answer is complete: its tiers and its session are told."""
        request = sequence.request
        if self._tiering is not None:
            self._tiering.used(sequence)
        if request.origin.route == WAKE_ROUTE:
            self._sessions.woken(request.session, request.origin.tenant)
        elif sequence.choice == 0 and request.pooling is None:
            keys = sequence.block_keys(sequence.num_computed)
            full = sequence.num_computed // self._block_size
            self._sessions.ended(request, sequence.token_ids, keys[:full])
