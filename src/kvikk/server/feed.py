"""The live feed: what the page and ``kvikk top`` draw, told as it changes.

One look at the engine serves all who watch as one reader, a few times a second and only while
somebody does. A watcher is told everything once and then what is different: runs of blocks whose
state changed, and requests that came, went on or ended.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvikk.cache.blocks import BlockState
from kvikk.engine.accounts import Account
from kvikk.engine.stats import Stats
from kvikk.engine.view import EngineView, Progress, look
from kvikk.engine.worker import EngineWorker
from kvikk.errors import BusyError
from kvikk.server.conversations import Conversations

INTERVAL_S = 0.2
SHOWN_REQUESTS = 60
MOST_WATCHERS = 64
# Something is said at least so often: that the server is there, and that nothing moves.
HEARTBEAT_TICKS = 5


@dataclass(frozen=True)
class SeenRequest:
    """One request and the conversation it belongs to; ``progress`` is the last that was seen."""

    account: Account
    conversation: str
    progress: Progress | None
    has_ended: bool

    def to_json(self, for_operator: bool) -> dict[str, Any]:
        """As the feed tells it."""
        progress = self.progress
        spans = self.account.spans(for_operator)
        running = progress is not None and progress.is_running
        return {
            "id": self.account.request_id,
            "at": self.account.at_s,
            "conversation": self.conversation,
            "route": self.account.origin.route,
            "state": "ended" if self.has_ended else "running" if running else "waiting",
            "prompt_tokens": self.account.ledger.num_tokens,
            "cached_tokens": sum(span.num_tokens for span in spans if span.cause.is_hit),
            "computed_tokens": None if progress is None else progress.computed_tokens,
            "generated_tokens": None if progress is None else progress.generated_tokens,
            "spans": [
                {"start": span.start, "stop": span.stop, "cause": span.cause.value}
                for span in spans
            ],
        }


@dataclass(frozen=True)
class _Moment:
    """``stats`` is None, and ``states`` empty, where the reader is not the operator."""

    requests: dict[str, SeenRequest]
    stats: Stats | None
    states: tuple[bytes, ...]


class Feed:
    """Looks at one engine, as one reader may, while anybody watches. Belongs to the event loop.

    The reader is a tenant, told of its own requests as if it were alone, or None: the operator.
    """

    def __init__(self, worker: EngineWorker, reader: str | None) -> None:
        self._worker = worker
        self._reader = reader
        self._conversations = Conversations()
        self._seen: dict[str, SeenRequest] = {}
        self._moment: _Moment | None = None  # None: nobody looks
        self._num_watchers = 0
        self._looking: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether nobody more may watch."""
        return self._num_watchers >= MOST_WATCHERS

    async def watch(self) -> AsyncIterator[dict[str, Any]]:
        """Everything at first, then what changes, until the engine stops."""
        self._num_watchers += 1
        try:
            if self._looking is None:
                self._looking = asyncio.create_task(self._keep_looking())
            looking = self._looking
            told: _Moment | None = None
            silent_ticks = 0
            while not looking.done():
                moment = self._moment
                silent_ticks += 1
                if moment is not None and (moment is not told or silent_ticks == HEARTBEAT_TICKS):
                    yield self._difference(told, moment)
                    told, silent_ticks = moment, 0
                await asyncio.sleep(INTERVAL_S)
        finally:
            self._num_watchers -= 1
            if self._num_watchers == 0 and self._looking is not None:
                self._looking.cancel()
                self._looking = self._moment = None

    async def _keep_looking(self) -> None:
        """Look again and again, until the engine stops."""
        with suppress(BusyError):
            while True:
                view = await asyncio.wrap_future(
                    self._worker.call(
                        lambda engine: look(engine, self._reader, SHOWN_REQUESTS, self._seen)
                    )
                )
                self._seen = self._place(view)
                moment = _Moment(self._seen, view.stats, view.states)
                if moment != self._moment:
                    self._moment = moment
                await asyncio.sleep(INTERVAL_S)

    def _place(self, view: EngineView) -> dict[str, SeenRequest]:
        """The requests of a view, each in its conversation."""
        requests = {}
        for one in view.requests:
            request_id = one.account.request_id
            before = self._seen.get(request_id)
            if before is None:
                name = self._conversations.place(request_id, one.account.origin.tenant, one.prompt)
                before = SeenRequest(one.account, name, None, has_ended=False)
            requests[request_id] = replace(
                before,
                progress=one.progress or before.progress,
                has_ended=one.progress is None,
            )
        return requests

    def _difference(self, told: _Moment | None, moment: _Moment) -> dict[str, Any]:
        """What is new in a moment for somebody who was told of another, or of none yet."""
        before = {} if told is None else told.requests
        event: dict[str, Any] = {
            "at": time.time(),
            "requests": [
                request.to_json(for_operator=self._reader is None)
                for request_id, request in moment.requests.items()
                if request != before.get(request_id)
            ],
        }
        stats = moment.stats
        if stats is None:
            return event
        event["engine"] = {
            "running_requests": stats.running_requests,
            "waiting_requests": stats.waiting_requests,
            "preemptions": stats.preemptions,
            "prompt_tokens": stats.prompt_tokens,
            "generated_tokens": stats.generated_tokens,
            "computed_tokens": stats.computed_tokens,
            "block_size": stats.block_size,
        }
        old = (b"",) * len(moment.states) if told is None else told.states
        event["groups"] = [
            {
                "window_tokens": group.window_tokens,
                "total_blocks": group.total_blocks,
                "runs": changed_runs(then, now),
            }
            for group, then, now in zip(stats.groups, old, moment.states, strict=True)
        ]
        return event


class Feeds:
    """One engine's feeds, one a reader: no tenant's depends on what others do."""

    def __init__(self, worker: EngineWorker) -> None:
        self._worker = worker
        self._feeds: dict[str | None, Feed] = {}

    def of(self, reader: str | None) -> Feed:
        """The feed of a tenant, or of the operator (None)."""
        if reader not in self._feeds:
            self._feeds[reader] = Feed(self._worker, reader)
        return self._feeds[reader]


def changed_runs(old: bytes, new: bytes) -> list[tuple[int, int, str]]:
    """``(start, stop, state)`` of neighbours that are in one state now and were not before."""
    if old == new:
        return []
    now = np.frombuffer(new, np.uint8)
    changed = np.ones(len(new), np.bool_)
    if len(old) == len(new):
        changed = np.frombuffer(old, np.uint8) != now
    places = np.flatnonzero(changed)
    breaks = np.flatnonzero((np.diff(places) > 1) | (np.diff(now[places]) != 0)) + 1
    return [
        (int(run[0]), int(run[-1]) + 1, BlockState(now[run[0]]).name.lower())
        for run in np.split(places, breaks)
    ]
