"""The engine in its thread: many callers, one owner, and an end for every request."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from kvikk.engine.engine import Engine
from kvikk.engine.requests import Generation, Output, Request
from kvikk.engine.worker import EngineWorker
from kvikk.errors import BusyError, RequestError
from tests.engine.driver import Answer, make_engine, request
from tests.engine.exact_backend import ExactBackend, answer

PATIENCE_S = 60  # a test that hangs fails; nothing is measured
LONG = tuple(range(1, 41))


class Client:
    """Collects one request's outputs."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.started = threading.Event()
        self.done = threading.Event()

    def __call__(self, output: Output) -> None:
        self.answer.take(output)
        self.started.set()
        if output.finish_reason is not None:
            self.done.set()

    def wait(self) -> Answer:
        assert self.done.wait(PATIENCE_S)
        return self.answer


class Gate(ExactBackend):
    """Holds every step until the gate is opened: what happens meanwhile is no matter of luck."""

    def __init__(self, backend: ExactBackend) -> None:
        self.__dict__.update(backend.__dict__)
        self.entered = threading.Event()
        self.open = threading.Event()

    def forward(self, batch):  # type: ignore[no-untyped-def]
        self.entered.set()
        assert self.open.wait(PATIENCE_S)
        return super().forward(batch)


@pytest.fixture
def running() -> Iterator[tuple[EngineWorker, Engine]]:
    engine, _ = make_engine(num_blocks=(32,))
    worker = EngineWorker(engine)
    yield worker, engine
    worker.stop()


@pytest.fixture
def gated() -> Iterator[tuple[EngineWorker, Gate]]:
    engine, backend = make_engine(num_blocks=(32,), max_queue=2, max_running=2)
    gate = engine._backend = Gate(backend)
    worker = EngineWorker(engine)
    yield worker, gate
    gate.open.set()
    worker.stop()


def test_requests_from_many_threads_all_get_their_own_answer(
    running: tuple[EngineWorker, Engine],
) -> None:
    worker, engine = running
    prompts = [LONG[i : i + 7 + i % 5] for i in range(30)]
    clients = [Client() for _ in prompts]

    def submit(start: int) -> None:
        for i in range(start, len(prompts), 5):
            worker.submit(request(str(i), prompts[i], 6), clients[i])

    threads = [threading.Thread(target=submit, args=(start,)) for start in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for prompt, client in zip(prompts, clients, strict=True):
        assert client.wait().token_ids == answer(prompt, Generation(6), (None,), 64)[0]
    assert worker.call(lambda engine: engine.cache.usage().live_blocks).result(PATIENCE_S) == 0
    assert worker.stats().finished_requests == {"length": 30}
    assert worker.stats() == engine.stats()


def test_what_can_never_be_served_is_refused_in_the_callers_thread(
    running: tuple[EngineWorker, Engine],
) -> None:
    worker, _ = running
    with pytest.raises(RequestError):
        worker.submit(request("a", [1] * 1000), Client())
    with pytest.raises(RequestError):
        worker.submit(request("a", []), Client())


def test_a_full_queue_is_refused_in_the_callers_thread(gated: tuple[EngineWorker, Gate]) -> None:
    worker, gate = gated
    clients = [Client() for _ in range(4)]
    for i, client in enumerate(clients):
        worker.submit(request(str(i), LONG, 2), client)
    with pytest.raises(BusyError):
        worker.submit(request("late", LONG, 2), Client())
    with pytest.raises(RequestError):
        worker.submit(request("0", LONG, 2), Client())
    gate.open.set()
    assert [client.wait().finish_reason for client in clients] == ["length"] * 4


def test_abort_ends_a_request_and_frees_its_blocks(running: tuple[EngineWorker, Engine]) -> None:
    worker, _ = running
    client = Client()
    worker.submit(request("a", [1], 60), client)
    assert client.started.wait(PATIENCE_S)
    worker.abort("a")
    worker.abort("unknown")
    assert client.wait().finish_reason in ("abort", "length")
    assert worker.call(lambda engine: engine.cache.usage().live_blocks).result(PATIENCE_S) == 0
    worker.abort("a")


@pytest.mark.parametrize("fails_at_the_end", [False, True])
def test_a_listener_that_fails_ends_its_own_request_only_and_is_told(
    running: tuple[EngineWorker, Engine], fails_at_the_end: bool
) -> None:
    worker, _ = running
    failed = Future[Output]()
    calls = []

    def broken(output: Output) -> None:
        calls.append(output)
        if output.error is not None:
            failed.set_result(output)
        elif output.ends_request or not fails_at_the_end:
            raise RuntimeError("no room for this")

    client = Client()
    worker.submit(request("broken", LONG, 20), broken)
    worker.submit(request("sound", LONG, 20), client)
    last = failed.result(PATIENCE_S)
    assert (last.finish_reason, last.ends_request) == ("error", True)
    assert last.error == "the answer could not be passed on: RuntimeError: no room for this"
    assert client.wait().token_ids == answer(LONG, Generation(20), (None,), 64)[0]
    assert worker.drain(PATIENCE_S)
    assert worker.call(lambda engine: engine.cache.usage().live_blocks).result(PATIENCE_S) == 0
    assert calls[-1] is last
    assert fails_at_the_end or len(calls) == 2
    assert worker.failure is None


def test_a_listener_that_takes_nothing_at_all_ends_its_own_request_only(
    running: tuple[EngineWorker, Engine],
) -> None:
    worker, _ = running

    def closed(output: Output) -> None:
        raise RuntimeError("event loop is closed")

    client = Client()
    worker.submit(request("closed", LONG, 20), closed)
    worker.submit(request("sound", LONG, 20), client)
    assert client.wait().token_ids == answer(LONG, Generation(20), (None,), 64)[0]
    assert worker.drain(PATIENCE_S)
    assert worker.failure is None


def test_a_failing_engine_tells_everybody_and_takes_nothing_more(
    gated: tuple[EngineWorker, Gate],
) -> None:
    worker, gate = gated
    clients = [Client() for _ in range(4)]
    for i, client in enumerate(clients):
        worker.submit(request(str(i), LONG, 9), client)
    assert gate.entered.wait(PATIENCE_S)
    # A defect: somebody takes the blocks of a running sequence away.
    taken = worker.call(lambda engine: engine.cache.free(0))
    gate.open.set()
    taken.result(PATIENCE_S)
    for client in clients:
        got = client.wait()
        assert got.finish_reason == "error"
        assert got.last is not None
        assert got.last.error is not None
    assert worker.failure is not None
    assert not worker.accepting
    with pytest.raises(BusyError, match="stopped"):
        worker.submit(request("after", LONG), Client())
    with pytest.raises(BusyError, match="stopped"):
        worker.call(lambda engine: engine.stats()).result(PATIENCE_S)
    assert worker.drain(PATIENCE_S)


def test_draining_finishes_what_runs_and_refuses_what_is_new(
    gated: tuple[EngineWorker, Gate],
) -> None:
    worker, gate = gated
    client = Client()
    worker.submit(request("a", LONG, 3), client)
    assert not worker.drain(0.01)
    with pytest.raises(BusyError, match="shutting down"):
        worker.submit(request("b", LONG, 3), Client())
    gate.open.set()
    assert worker.drain(PATIENCE_S)
    assert client.wait().finish_reason == "length"


def test_stopping_aborts_what_runs_and_what_waits(gated: tuple[EngineWorker, Gate]) -> None:
    worker, gate = gated
    clients = [Client() for _ in range(4)]
    for i, client in enumerate(clients):
        worker.submit(request(str(i), LONG, 9), client)
    assert gate.entered.wait(PATIENCE_S)
    stopper = threading.Thread(target=worker.stop)
    stopper.start()
    gate.open.set()
    stopper.join(PATIENCE_S)
    assert not stopper.is_alive()
    assert {client.wait().finish_reason for client in clients} <= {"abort", "length"}
    with pytest.raises(BusyError):
        worker.call(lambda engine: engine.stats()).result(PATIENCE_S)


def test_what_is_accepted_while_jobs_run_is_ended_by_a_stop_that_comes_then(
    running: tuple[EngineWorker, Engine],
) -> None:
    worker, _ = running
    client = Client()
    stopper = threading.Thread(target=worker.stop)

    def accept_then_stop(engine: Engine) -> Future[int]:
        worker.submit(request("a", LONG, 9), client)
        looked = worker.call(lambda engine: engine.cache.usage().live_blocks)
        stopper.start()
        while worker.accepting:
            stopper.join(0.001)
        return looked

    looked = worker.call(accept_then_stop).result(PATIENCE_S)
    stopper.join(PATIENCE_S)
    assert client.wait().finish_reason == "abort"
    assert looked.result(PATIENCE_S) == 0


def test_a_job_that_fails_the_engine_leaves_no_other_job_without_an_answer(
    gated: tuple[EngineWorker, Gate],
) -> None:
    worker, gate = gated
    clients = [Client() for _ in range(3)]
    worker.submit(request("a", LONG, 9), clients[0])
    assert gate.entered.wait(PATIENCE_S)
    # A defect: nothing can be added any more.
    worker._engine._requests = None  # type: ignore[assignment]
    worker.submit(request("b", LONG, 9), clients[1])
    looked = worker.call(lambda engine: engine.max_requests)
    worker.submit(request("c", LONG, 9), clients[2])
    gate.open.set()
    assert [client.wait().finish_reason for client in clients] == ["error"] * 3
    with pytest.raises(BusyError, match="stopped"):
        looked.result(PATIENCE_S)


def test_the_cache_can_be_reset_between_steps(running: tuple[EngineWorker, Engine]) -> None:
    worker, _ = running
    first, second = Client(), Client()
    worker.submit(request("a", LONG, 2), first)
    first.wait()
    assert worker.call(lambda engine: engine.reset_cache()).result(PATIENCE_S).complete
    worker.submit(Request("b", LONG, Generation(2)), second)
    last = second.wait().last
    assert last is not None
    assert last.usage.cached_tokens == 0


def test_a_function_that_fails_fails_for_its_caller_only(
    running: tuple[EngineWorker, Engine],
) -> None:
    worker, _ = running
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda engine: 1 // 0).result(PATIENCE_S)
    assert worker.accepting
