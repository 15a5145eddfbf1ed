"""A replica fails: what had begun says so, what had not goes elsewhere, and it is left alone."""

import asyncio
import contextlib
import json
import signal

import pytest

from tests.ports import free_port
from tests.router.live import (
    PATIENCE_S,
    LiveRouter,
    events,
    router,
    running,
    stubs,
    until,
    wait_for,
)


async def stream(live: LiveRouter, stub: dict, started: asyncio.Event | None = None) -> str:
    """All that comes for a streamed request; ``started`` is set by its first event."""
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    body = json.dumps({"model": "stub", "stub": stub}).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n"
        b"connection: close\r\n\r\n%b" % (len(body), body)
    )
    got = b""
    while piece := await reader.read(1 << 16):
        got += piece
        if started is not None and b"data:" in got:
            started.set()
    writer.close()
    return got.decode()


def test_killing_a_replica_under_100_streams_ends_its_own_clearly_and_no_others():
    """Of 100 streams those that it had begun end with an error event. All others finish, also
    those that wait in the router's queue and those that it had not begun to answer. When it comes
    back as another process that is noticed."""
    with stubs(3) as replicas, router(replicas, "--replica-concurrency", "20") as live:
        victim = replicas[1]

        async def run() -> list[str]:
            # Those that have begun fill all places, and 40 more wait in the queue.
            tasks = []
            for _ in range(60):
                started = asyncio.Event()
                wanted = {"chunks": 12, "held_after": 1}
                tasks.append(asyncio.ensure_future(stream(live, wanted, started)))
                await started.wait()
            tasks += [
                asyncio.ensure_future(stream(live, {"chunks": 3, "interval_s": 0.02}))
                for _ in range(40)
            ]
            await until(lambda: live.metric("kvikk_router_waiting_requests") == 40)
            victim.kill()
            for one in replicas:
                if one is not victim:
                    one.release()
            return await asyncio.gather(*tasks)

        answers = asyncio.run(run())
        broken = [text for text in answers if "[DONE]" not in text]
        whole = [text for text in answers if "[DONE]" in text]
        assert len(broken) == 20
        for text in broken:
            assert f"x-kvikk-replica: {victim.id}" in text
            last = events(text)[-1]
            assert last["error"]["code"] == "replica_failed"
            assert "broke off" in last["error"]["message"]
            assert text.endswith("\r\n0\r\n\r\n")
            assert [one["index"] for one in events(text)[:-1]] == [*range(len(events(text)) - 1)]
        assert len(whole) == 80
        for text in whole:
            assert "error" not in text
            indices = [one["index"] for one in events(text)[:-1]]
            assert indices in ([*range(12)], [*range(3)])
        wait_for(live.is_idle)
        live.wait_until_well(2)
        victim.start()
        live.wait_until_well(3)
        assert live.replicas()[victim.id]["restarts"] == 1
        assert {live.post().json()["from"] for _ in range(9)} == {"stub-0", "stub-1", "stub-2"}


@pytest.mark.parametrize(
    "stub",
    [{"hang_up": True}, {"half_s": 0.05, "break": True}, {"raw": ["nonsense\r\n\r\n"]}],
    ids=["before the head", "within a whole answer", "with something else than HTTP"],
)
def test_what_fails_before_the_first_byte_is_tried_elsewhere(live, three_stubs, stub):
    """All three fail it: three attempts, each at another one, and then one clear error."""
    response = live.post(stub)
    assert response.status_code == 502
    assert "3 attempts failed" in response.json()["error"]["message"]
    # One whose connection had been in wait is asked again on a new one: it might have gone stale.
    assert {len(one.state()["seen"]) for one in three_stubs} <= {1, 2}


def test_nothing_is_sent_twice_once_a_byte_was_sent(live, three_stubs):
    """A retry then would repeat text (hive 5923)."""
    text = live.post({"chunks": 5, "cut_after": 2}).text
    assert [one.get("index") for one in events(text)] == [0, 1, None]
    assert events(text)[-1]["error"]["code"] == "replica_failed"
    assert sum(len(one.state()["seen"]) for one in three_stubs) == 1


def test_an_answer_that_breaks_within_an_event_has_no_false_end(live):
    got = asyncio.run(stream(live, {"chunks": 5, "cut_after": 2, "within": True}))
    assert not got.endswith("0\r\n\r\n")
    assert "error" not in got


def test_the_error_event_speaks_the_language_of_the_api(live):
    text = live.post({"chunks": 5, "cut_after": 2}, path="/v1/messages").text
    assert text.endswith("\n\n")
    assert "\nevent: error\ndata: " in text
    assert events(text)[-1]["type"] == "error"


def test_a_replica_that_says_it_is_full_is_passed_over(live, three_stubs):
    busy = {"status": 429, "body": "busy", "headers": [["retry-after", "7"]]}
    response = live.post(busy)
    # All say so: the last one's own answer is what the caller gets.
    assert response.status_code == 429
    assert response.headers["retry-after"] == "7"
    assert response.text == "busy"
    assert [len(one.state()["seen"]) for one in three_stubs] == [1, 1, 1]


def test_a_connection_that_went_stale_costs_nobody_anything(live, three_stubs):
    """Killed and started again between two requests: the connections in wait are all dead."""
    for _ in range(3):
        live.post()
    victim = three_stubs[2]
    victim.kill()
    victim.start()
    assert [live.post().status_code for _ in range(9)] == [200] * 9
    live.wait_until_well(3)


def test_failures_in_a_row_open_the_circuit_and_one_success_closes_it():
    with stubs(2) as replicas, router(replicas) as live:
        broken, other = replicas

        def state() -> str:
            return live.replicas()[broken.id]["breaker"]

        def answers_while_it_rests() -> set[str]:
            """A second is not much where others want the processor: then it is opened anew."""
            while True:
                live.admin("POST", f"/{other.id}/drain")
                while state() != "open":
                    live.post({"status": 500})
                live.admin("POST", f"/{other.id}/resume")
                answers = {live.post().json()["from"] for _ in range(6)}
                if state() == "open":
                    return answers

        live.admin("POST", f"/{other.id}/drain")
        for _ in range(4):
            live.post({"status": 500})
        live.post()  # one success in between, and the count begins anew
        for _ in range(5):
            assert state() == "closed"
            live.post({"status": 500})
        assert state() != "closed"
        assert answers_while_it_rests() == {"stub-1"}
        wait_for(lambda: state() == "half-open")
        assert "stub-0" in {live.post().json()["from"] for _ in range(6)}
        assert state() == "closed"


def test_without_a_usable_replica_a_request_waits_and_is_served(three_stubs):
    """Its only replica is away for a moment: nothing is lost, nobody sees an error."""
    with stubs(1) as (only,), router([only], "--queue-timeout", f"{PATIENCE_S}") as live:
        only.kill()

        async def run() -> str:
            task = asyncio.ensure_future(stream(live, {"chunks": 1}))
            await until(lambda: live.metric("kvikk_router_waiting_requests") == 1)
            await asyncio.sleep(0.5)
            assert not task.done()
            await asyncio.to_thread(only.start)
            return await task

        assert "[DONE]" in asyncio.run(run())


def test_times_run_out_with_a_clear_error():
    with stubs(1) as replicas:
        with router(replicas, "--first-byte-timeout", "0.3") as live:
            response = live.post({"held": True})
            assert response.status_code == 504
            assert "no answer within 0.3 s" in response.json()["error"]["message"]
        with router(replicas, "--idle-timeout", "0.3") as live:
            text = live.post({"chunks": 2, "held_after": 1}).text
            assert "stood still for 0.3 s" in events(text)[-1]["error"]["message"]
        with router(replicas, "--total-timeout", "2", "--queue-timeout", "0.3") as live:
            text = live.post({"chunks": 9999, "interval_s": 0.1}).text
            assert "longer than 2 s" in events(text)[-1]["error"]["message"]
            wait_for(lambda: running(replicas) == 0)
            assert replicas[0].state()["cancelled"] == 3
            live.admin("POST", f"/{replicas[0].id}/drain")
            response = live.post()
            assert response.status_code == 503
            assert response.headers["retry-after"]
            assert live.is_idle()


def test_a_router_that_is_told_to_go_finishes_what_runs_and_takes_nothing_new():
    with stubs(1) as replicas, router(replicas) as live:

        async def run() -> tuple[str, str]:
            reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 16\r\n\r\n{")
            started = asyncio.Event()
            wanted = {"chunks": 5, "held_after": 1}
            task = asyncio.ensure_future(stream(live, wanted, started))
            await started.wait()
            live.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.1)
            late = b""
            with contextlib.suppress(ConnectionError):
                writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n\r\n")
                late = await reader.read(1000)
            replicas[0].release()
            return await task, late.decode()

        whole, late = asyncio.run(run())
        assert "[DONE]" in whole
        assert late.startswith(("HTTP/1.1 503", "HTTP/1.1 400")) or not late
        assert live.process.wait(PATIENCE_S) == 0


def test_a_replica_nobody_listens_at_is_noticed_and_named():
    port = free_port()
    with stubs(1) as replicas, router(replicas, "--replica", f"http://127.0.0.1:{port}") as live:
        wait_for(lambda: "refused" in live.replicas()[f"127.0.0.1:{port}"]["problem"].lower())
        before = live.metric("kvikk_router_replica_errors_total")
        assert [live.post().status_code for _ in range(5)] == [200] * 5
        assert live.metric("kvikk_router_replica_errors_total") == before  # nobody tried it


def test_a_full_disk_costs_the_logs_their_lines_and_no_request_its_answer(three_stubs):
    full = ["--access-log", "/dev/full", "--decision-log", "/dev/full"]
    with router(three_stubs, *full) as live:
        for _ in range(130):
            assert live.post().status_code == 200
        assert live.process.stderr is not None
        said = {live.process.stderr.readline() for _ in range(131)}
        assert said == {
            "the access log lacks lines from now on: No space left on device\n",
            "the decision log lacks a line: No space left on device\n",
        }
        assert live.http.get("/healthz").status_code == 200
