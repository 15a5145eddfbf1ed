"""The engine in a thread of its own, for servers: requests in from any thread, outputs by callback.

The engine's state has one owner, this thread. Everybody else hands it small jobs, which it runs
between two steps; what can be answered without its state (a request that could never fit, a full
queue) is answered in the caller's thread, at once. With nothing to do the thread sleeps on a
condition and costs nothing.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from kvikk.engine.engine import Engine
from kvikk.engine.requests import Output, Request, Timings, Usage
from kvikk.engine.stats import Stats
from kvikk.errors import BusyError, KvikkError, RequestError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Listener = Callable[[Output], None]
# Runs in the engine's thread; told why, where the engine failed before its turn came.
Job = Callable[[str | None], None]


class EngineWorker:
    """Runs an engine; every method may be called from any thread.

    A listener is called in the engine's thread with each output of its request, the last of which
    ends it; it must return at once. Every accepted request gets that last output, whatever happens:
    where a listener raises, its request ends, and it is called once more with reason ``error``.
    If the engine itself fails, all of them end with reason ``error``, ``failure``
    says why, and nothing more is accepted.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._condition = threading.Condition()
        # Guarded by the condition's lock.
        self._jobs: deque[Job] = deque()
        self._listeners: dict[str, Listener] = {}
        self._draining = False
        self._stopping = False
        self._failure: str | None = None
        # Written by the engine's thread, read by any: one reference, replaced whole.
        self._stats = engine.stats()
        self._thread = threading.Thread(target=self._run, name="kvikk-engine", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why the engine's thread ended by itself; None while all is well."""
        return self._failure

    @property
    def accepting(self) -> bool:
        """Whether new requests are taken: not after a failure, nor while draining."""
        return self._failure is None and not self._draining

    def stats(self) -> Stats:
        """The engine's figures after its latest step, and its tiers' now; never waits."""
        return replace(self._stats, tiering=self._engine.tiering_stats())

    def submit(self, request: Request, listener: Listener) -> None:
        """Queue a request. Raises RequestError if it can never be served, BusyError if not now."""
        self._engine.check(request)
        with self._condition:
            if self._failure is not None:
                raise BusyError(f"the engine has stopped: {self._failure}", retry_after_s=60)
            if self._draining:
                raise BusyError("the server is shutting down; try another", retry_after_s=10)
            if request.id in self._listeners:
                raise RequestError(f"a request {request.id!r} is already running", "id")
            if len(self._listeners) >= self._engine.max_requests:
                raise BusyError(
                    f"{len(self._listeners)} requests are running or waiting, which is the limit; "
                    "try again soon"
                )
            self._listeners[request.id] = listener
            arrived_s = time.monotonic()
            self._jobs.append(lambda failure: self._add(request, arrived_s, failure))
            self._condition.notify_all()

    def abort(self, request_id: str) -> None:
        """End a request before the next step; an unknown or finished one is left alone."""
        with self._condition:
            if self._failure is None and request_id in self._listeners:
                self._jobs.append(lambda failure: self._abort(request_id, failure))
                self._condition.notify_all()

    def call(self, function: Callable[[Engine], Result]) -> Future[Result]:
        """Run a function on the engine between two steps: the way to look at or reset its cache."""
        future: Future[Result] = Future()

        def job(failure: str | None) -> None:
            if not future.set_running_or_notify_cancel():
                return
            if failure is not None:
                future.set_exception(BusyError(f"the engine has stopped: {failure}"))
                return
            try:
                future.set_result(function(self._engine))
            except Exception as error:
                future.set_exception(error)

        with self._condition:
            if not self._stopping and self._failure is None:
                self._jobs.append(job)
                self._condition.notify_all()
                return future
        job(self._failure or "it was asked to")
        return future

    def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the others; True if all ended within ``timeout_s``."""
        with self._condition:
            self._draining = True
            return self._condition.wait_for(lambda: not self._listeners, timeout_s)

    def stop(self) -> None:
        """Abort what still runs and end the thread; returns when both are done."""
        with self._condition:
            self._draining = True
            self._stopping = True
            self._condition.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                if self._engine.has_work:
                    outputs = self._engine.step()
                    self._stats = self._engine.stats()
                    for output in outputs:
                        self._deliver(output)
            for request_id in list(self._listeners):
                self._engine.abort(request_id)
            for output in self._engine.step():
                self._deliver(output)
            self._engine.close()
            self._stats = self._engine.stats()
        except Exception as error:
            logger.exception("the engine failed")
            self._fail(f"{type(error).__name__}: {error}")

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do, then run the waiting jobs; False to stop."""
        self._use_pause()
        with self._condition:
            self._condition.wait_for(self._is_wanted)
            # Both at one moment: once stopping, no more jobs come, so none is left behind.
            jobs, stopping = len(self._jobs), self._stopping
        for _ in range(jobs):  # taken one by one: if one fails, the others are still there to tell
            self._jobs.popleft()(None)
        if jobs:
            self._stats = self._engine.stats()
        return not stopping

    def _is_wanted(self) -> bool:
        return bool(self._stopping or self._jobs or self._engine.has_work)

    def _use_pause(self) -> None:
        """Let the engine get ready for more, until something is to be done."""
        if not self._is_wanted():
            for _ in self._engine.touch_ahead():
                if self._is_wanted():
                    break

    def _add(self, request: Request, arrived_s: float, failure: str | None) -> None:
        if failure is not None:  # its listener is told with all the others
            return
        try:
            self._engine.add(request, arrived_s)
        except KvikkError as error:
            timings = Timings(arrived_s, finished_s=time.monotonic())
            usage = Usage(len(request.prompt_token_ids))
            refusal = error if isinstance(error, RequestError) else None
            failed = _failed(request.id, str(error), usage, timings)
            self._deliver(replace(failed, refusal=refusal))

    def _abort(self, request_id: str, failure: str | None) -> None:
        if failure is None:
            self._engine.abort(request_id)

    def _deliver(self, output: Output) -> None:
        listener = self._listeners.get(output.request_id)
        if output.ends_request:
            self._forget(output.request_id)
        if listener is None:
            return
        try:
            listener(output)
        except Exception as error:
            # It ends its own request, never the engine; whoever waits behind it is told.
            logger.exception("the listener of request %s failed", output.request_id)
            self._forget(output.request_id)
            self._engine.abort(output.request_id)
            reason = f"the answer could not be passed on: {type(error).__name__}: {error}"
            self._tell(listener, _failed(output.request_id, reason, output.usage, output.timings))

    def _forget(self, request_id: str) -> None:
        with self._condition:
            self._listeners.pop(request_id, None)
            self._condition.notify_all()

    def _tell(self, listener: Listener, last: Output) -> None:
        """Bring a request's last output, to a listener that may not take even that."""
        try:
            listener(last)
        except Exception:
            logger.exception("the listener of request %s took no end", last.request_id)

    def _fail(self, failure: str) -> None:
        with self._condition:
            self._failure = failure
            listeners, self._listeners = self._listeners, {}
            jobs, self._jobs = self._jobs, deque()
            self._condition.notify_all()
        for job in jobs:
            job(failure)
        now_s = time.monotonic()
        for request_id, listener in listeners.items():
            timings = Timings(now_s, finished_s=now_s)
            self._tell(listener, _failed(request_id, failure, Usage(0), timings))


def _failed(request_id: str, reason: str, usage: Usage, timings: Timings) -> Output:
    """The last output of a request that something went wrong with."""
    return Output(request_id, (), "", "error", usage, timings, reason, ends_request=True)
