"""Run sessions against a server and write down how each request went."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kvikk.bench.answers import Result
from kvikk.bench.target import Target
from kvikk.bench.workloads import Session


@dataclass(frozen=True)
class LoadRun:
    """One run, from its first request to its last token.

    ``not_sent`` turns were behind one that failed. ``client_cpu_s`` is this process's own time, so
    that nobody mistakes the client's limit for the server's.
    """

    results: tuple[Result, ...]
    not_sent: int
    duration_s: float
    client_cpu_s: float


async def run_sessions(
    target: Target,
    sessions: Iterable[Session],
    *,
    concurrency: int | None,
    on_result: Callable[[Result], None] = lambda result: None,
) -> LoadRun:
    """All sessions to their ends.

    With ``concurrency`` so many clients take one session after the other; without, each session
    begins at its moment of arrival, however busy the server is.
    """
    run = _Run(target, on_result)
    numbered = iter(enumerate(sessions))
    if concurrency is not None:
        await asyncio.gather(*(run.client(numbered) for _ in range(concurrency)))
    else:
        await run.arrivals(numbered)
    return run.ended()


class _Run:
    def __init__(self, target: Target, on_result: Callable[[Result], None]) -> None:
        self._target = target
        self._on_result = on_result
        self._results: list[Result] = []
        self._not_sent = 0
        self._began_s = time.monotonic()
        self._began_cpu_s = time.process_time()

    async def client(self, sessions: Iterator[tuple[int, Session]]) -> None:
        """One client: takes sessions until there are none."""
        for index, session in sessions:
            await self._converse(index, session, time.monotonic() - self._began_s)

    async def arrivals(self, sessions: Iterator[tuple[int, Session]]) -> None:
        """Every session at its moment."""
        async with asyncio.TaskGroup() as group:
            for index, session in sessions:
                due_s = session.arrival_s or 0.0
                await asyncio.sleep(max(0.0, self._began_s + due_s - time.monotonic()))
                group.create_task(self._converse(index, session, due_s))

    async def _converse(self, index: int, session: Session, due_s: float) -> None:
        """One session's turns, each behind the answer before it. A failure ends it."""
        messages = [] if session.system is None else [_message("system", session.system)]
        for number, turn in enumerate(session.turns):
            text = turn.text()
            messages.append(_message("user", text))
            result, answer = await self._target.ask(
                text if len(messages) == 1 else messages,
                turn.output_tokens,
                began_s=self._began_s,
                due_s=due_s,
                session=index,
                turn=number,
            )
            self._results.append(result)
            self._on_result(result)
            if result.error is not None:
                self._not_sent += len(session.turns) - number - 1
                return
            messages.append(_message("assistant", answer))
            due_s = time.monotonic() - self._began_s

    def ended(self) -> LoadRun:
        """What came of it."""
        return LoadRun(
            tuple(self._results),
            self._not_sent,
            time.monotonic() - self._began_s,
            time.process_time() - self._began_cpu_s,
        )


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
