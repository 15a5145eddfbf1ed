"""Who leaves at an awkward moment: a client while its request is on its way, the router itself."""

import asyncio
import contextlib
import json
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.router.live import PATIENCE_S, events, router, running, stubs, until, wait_for
from tests.router.test_failures import stream

POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"


class Door:
    """A replica that answers on connections it has, and may stop to accept others."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.id = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = f"http://{self.id}"
        self.is_open = threading.Event()
        self._rests = threading.Event()
        self.asked: list[bytes] = []
        self._in_line: list[socket.socket] = []
        self.is_open.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                if not self.is_open.is_set():
                    self._rests.set()
                    self.is_open.wait()
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            lines = connection.makefile("rb")
            while line := lines.readline():
                length = 0
                while (header := lines.readline()).strip():
                    if header.lower().startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                lines.read(length)
                if b" /v1/completions " in line:
                    self.asked.append(line)
                body = b'{"data": [{"id": "stub"}]}'
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 26\r\n\r\n" + body)

    def shut(self) -> None:
        """Fill the line before the door, so that whoever comes now gets no answer at all."""
        self.is_open.clear()
        with socket.create_connection(self._listener.getsockname()):
            assert self._rests.wait(PATIENCE_S)  # it let one more in
        while True:
            waiting = socket.socket()
            self._in_line.append(waiting)
            waiting.settimeout(0.3)
            try:
                waiting.connect(self._listener.getsockname())
            except TimeoutError:
                return

    def open(self) -> None:
        for waiting in self._in_line:
            waiting.close()
        self.is_open.set()

    def close(self) -> None:
        self._listener.close()
        self.open()


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.close()


def test_a_client_that_leaves_while_the_router_connects_leaves_nothing_behind(door: Door) -> None:
    with router([door], "--connect-timeout", "60", wait=False) as live:
        live.wait_until_well(1)
        door.shut()
        with socket.create_connection(("127.0.0.1", live.port)) as client:
            client.sendall(POST)
            wait_for(lambda: live.replicas()[door.id]["running_requests"] == 1)
        wait_for(live.is_idle)
        assert live.metric("kvikk_router_responses_total", 'status="499"') == 1
        assert live.metric("kvikk_router_replica_errors_total") == 0
        assert live.metric("kvikk_router_held_body_bytes") == 0
        door.open()
        assert live.post(path="/v1/completions").status_code == 200
        assert len(door.asked) == 1  # nobody asked for the one who had gone


def test_a_connection_that_takes_too_long_is_given_up_and_another_replica_asked(
    door: Door,
) -> None:
    with stubs(1) as replicas, router([door, *replicas], "--connect-timeout", "1") as live:
        door.shut()
        answers = [live.post(path="/v1/completions") for _ in range(4)]
        assert {answer.json().get("from") for answer in answers} == {"stub-0"}
        assert live.is_idle()
        assert not door.asked


def test_told_to_go_under_many_streams_all_of_them_finish_and_those_in_the_queue_too(
    tmp_path: Path,
) -> None:
    log = tmp_path / "access.jsonl"
    arguments = ["--replica-concurrency", "10", "--access-log", str(log)]
    with stubs(2) as replicas, router(replicas, *arguments) as live:

        async def run() -> tuple[list[str], int]:
            tasks = []
            for _ in range(20):
                started = asyncio.Event()
                wanted = {"chunks": 10, "held_after": 5}
                tasks.append(asyncio.ensure_future(stream(live, wanted, started)))
                await started.wait()
            tasks += [asyncio.ensure_future(stream(live, {"chunks": 2})) for _ in range(10)]
            await until(lambda: live.metric("kvikk_router_waiting_requests") == 10)
            before = live.metric("kvikk_router_client_connections")
            kept = await asyncio.open_connection("127.0.0.1", live.port)
            kept[1].write(POST[:20])  # a request that has begun to come in
            await until(lambda: live.metric("kvikk_router_client_connections") > before)
            await asyncio.sleep(0.1)
            live.metric("kvikk_router_client_connections")  # what came before this has been read
            live.process.send_signal(signal.SIGTERM)
            while True:  # until nobody listens any more
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", live.port)
                except ConnectionError:  # refused; or reset, in the listener's queue as it closed
                    break
                writer.close()
                await asyncio.sleep(0.01)
            kept[1].write(POST[20:])
            late = await kept[0].read()
            assert late.startswith(b"HTTP/1.1 503 "), late
            assert b"retry-after" in late
            for one in replicas:
                one.release()
            return await asyncio.gather(*tasks), live.process.wait(PATIENCE_S)

        answers, status = asyncio.run(run())
        assert status == 0
        assert len(answers) == 30
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [line["status"] for line in lines] == [200] * 30
        assert all("[DONE]" in text for text in answers)
        assert sorted(len(events(text)) for text in answers) == [3] * 10 + [11] * 20
        wait_for(lambda: running(replicas) == 0)
        assert sum(one.state()["cancelled"] for one in replicas) == 0


@pytest.mark.parametrize("signals", [1, 2])
def test_what_has_not_finished_in_time_is_told_and_stopped_upstream(signals: int) -> None:
    patience = {1: "0.3", 2: "600"}[signals]
    arguments = ["--drain", patience, "--replica-concurrency", "1"]
    with stubs(1) as replicas, router(replicas, *arguments) as live:

        async def run() -> tuple[str, str, int]:
            started = asyncio.Event()
            first = asyncio.ensure_future(stream(live, {"chunks": 2, "held_after": 1}, started))
            await started.wait()
            waiting = asyncio.ensure_future(stream(live, {"chunks": 1}))
            await until(lambda: live.metric("kvikk_router_waiting_requests") == 1)
            # Two of one kind can be taken for one.
            for number in (signal.SIGTERM, signal.SIGINT)[:signals]:
                live.process.send_signal(number)
            return await first, await waiting, live.process.wait(PATIENCE_S)

        first, waiting, status = asyncio.run(run())
        assert status == 0
        assert events(first)[-1]["error"]["message"] == "the router is going away"
        assert events(first)[-1]["error"]["code"] == "draining"
        assert first.endswith("\r\n0\r\n\r\n")
        assert waiting.startswith("HTTP/1.1 503 ")
        body = json.loads(waiting.partition("\r\n\r\n")[2])
        assert body["error"]["message"] == "the router is going away"
        wait_for(lambda: replicas[0].state()["cancelled"] == 1)
