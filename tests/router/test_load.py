"""Load is counted from before a request is sent until it has ended, however it ends."""

import asyncio
import json
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvikk.router.proxy.origin import parse_origin
from kvikk.router.proxy.pool import Pool
from kvikk.router.proxy.replica import Replica, ReplicaLoad
from kvikk.router.records import ReplicaView
from tests.router.live import LiveRouter, StubReplica, router, running, until, wait_for


def request(stub: dict, path: str = "/v1/chat/completions") -> bytes:
    body = json.dumps({"model": "stub", "stub": stub}).encode()
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (
        path.encode(),
        len(body),
        body,
    )


async def leave(
    live: LiveRouter, data: bytes, when: Callable[[], object], after: bytes = b""
) -> None:
    """Send a request, and go once ``after`` has come and ``when`` is so."""
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    writer.write(data)
    if after:
        await reader.readuntil(after)
    await until(when)
    writer.transport.abort()


@pytest.mark.parametrize(
    ("stub", "after"),
    [
        ({"held": True}, b""),
        ({"half_s": 600}, b""),
        ({"chunks": 10, "held_after": 3}, b'"index":2'),
        ({"chunks": 2000, "pad": 60000}, b""),
    ],
    ids=["before the answer", "within a whole answer", "within a stream", "while not reading"],
)
def test_a_client_that_has_gone_stops_the_work_upstream(live, three_stubs, stub, after):
    async def all_leave() -> None:
        all_run = asyncio.Event()
        leaving = [leave(live, request(stub), all_run.is_set, after) for _ in range(6)]
        tasks = [asyncio.ensure_future(one) for one in leaving]
        await until(lambda: running(three_stubs) == 6)
        await asyncio.sleep(0.2)
        all_run.set()
        await asyncio.gather(*tasks)

    def errors() -> int:
        return sum(sum(one["errors"].values()) for one in live.replicas().values())

    before = errors()
    asyncio.run(all_leave())
    wait_for(lambda: running(three_stubs) == 0)
    assert sum(one.state()["cancelled"] for one in three_stubs) == 6
    wait_for(live.is_idle)
    # Whoever left is no reason to think ill of a replica.
    assert errors() == before


def test_a_client_that_leaves_the_queue_leaves_nothing_behind(three_stubs):
    with router(three_stubs[:1], "--replica-concurrency", "1") as live:

        def waiting() -> float:
            return live.metric("kvikk_router_waiting_requests")

        async def run() -> None:
            all_wait, none_waits = asyncio.Event(), asyncio.Event()
            busy = asyncio.ensure_future(leave(live, request({"held": True}), none_waits.is_set))
            await until(lambda: running(three_stubs[:1]) == 1)
            others = [
                asyncio.ensure_future(leave(live, request({}), all_wait.is_set)) for _ in range(5)
            ]
            await until(lambda: waiting() == 5)
            all_wait.set()
            await asyncio.gather(*others)
            await until(lambda: waiting() == 0)
            none_waits.set()
            await busy

        asyncio.run(run())
        wait_for(live.is_idle)
        assert waiting() == 0
        assert live.metric("kvikk_router_tenant_running_requests") == 0
        assert live.post().status_code == 200
        assert live.metric("kvikk_router_responses_total", 'status="499"') == 6


def test_ties_rotate_and_a_burst_is_counted_before_it_is_answered(live, three_stubs):
    """Load that counts only when an answer begins lets worker 0 win every tie (smg 1714)."""

    async def burst() -> list[int]:
        all_run = asyncio.Event()
        leaving = [leave(live, request({"held": True}), all_run.is_set) for _ in range(30)]
        tasks = [asyncio.ensure_future(one) for one in leaving]
        await until(lambda: running(three_stubs) == 30)
        counts = [running([one]) for one in three_stubs]
        all_run.set()
        await asyncio.gather(*tasks)
        return counts

    assert asyncio.run(burst()) == [10, 10, 10]


def test_health_checks_leave_load_alone(live: LiveRouter, three_stubs):
    async def check() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        writer.write(request({"chunks": 10, "held_after": 2}))
        await reader.readuntil(b'"index":1')

        def checks() -> int:
            return sum(one.state()["checks"] for one in three_stubs)

        before = checks()
        await until(lambda: checks() > before + 3)
        loads = [one["running_requests"] for one in live.replicas().values()]
        assert sorted(loads) == [0, 0, 1]
        writer.close()

    asyncio.run(check())
    wait_for(live.is_idle)


def test_only_replicas_that_can_be_used_count(three_stubs: list[StubReplica]):
    """An idle one that is not well must not look like the least loaded (vllm-router 254)."""
    with router(three_stubs) as live:
        three_stubs[0].set(health=503)
        try:
            live.wait_until_well(2)
            for one in three_stubs:
                one.forget()
            assert {live.post().json()["from"] for _ in range(12)} == {"stub-1", "stub-2"}
        finally:
            three_stubs[0].set(health=200)
        live.wait_until_well(3)
        assert "stub-0" in {live.post().json()["from"] for _ in range(12)}


class LoadMachine(RuleBasedStateMachine):
    """Any number of requests, in any order; replicas flap and open their breakers meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.replica = Replica(
            ReplicaView("r", 0), Pool(parse_origin("http://127.0.0.1:1"), None, 1), 4, "test"
        )
        self.held: list[tuple[ReplicaLoad, int, int, bool]] = []
        self.now_s = 0.0

    @rule(tokens=st.integers(0, 100), hit=st.integers(0, 100))
    def acquire(self, tokens: int, hit: int) -> None:
        self.held.append(
            (ReplicaLoad(self.replica, tokens, hit), tokens, max(tokens - hit, 0), True)
        )

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def first_token(self, data) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        load, tokens, computed, _ = self.held[index]
        load.first_token()
        self.held[index] = (load, tokens, computed, False)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), twice=st.booleans())
    def release(self, data, twice: bool) -> None:
        load, *_ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        load.release()
        if twice:
            load.release()
            load.first_token()

    @rule(healthy=st.booleans(), draining=st.booleans())
    def flap(self, healthy: bool, draining: bool) -> None:
        self.replica.is_healthy, self.replica.is_draining = healthy, draining
        self.replica.update()

    @rule(fails=st.booleans(), seconds=st.floats(0, 40))
    def verdict(self, fails: bool, seconds: float) -> None:
        self.now_s += seconds
        breaker = self.replica.breaker
        breaker.tick(self.now_s)
        if fails:
            breaker.failed(self.now_s)
        else:
            breaker.succeeded()
        self.replica.update()

    @invariant()
    def is_the_sum_of_what_is_held(self) -> None:
        view = self.replica.view
        assert view.running_requests == len(self.held)
        assert view.running_tokens == sum(tokens for _, tokens, _, _ in self.held)
        waiting = sum(computed for _, _, computed, waits in self.held if waits)
        assert view.waiting_tokens == waiting
        if len(self.held) >= 4 or not self.replica.is_healthy or self.replica.is_draining:
            assert not view.eligible


TestLoadMachine = LoadMachine.TestCase
TestLoadMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
