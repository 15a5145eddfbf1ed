"""Replicas come and go while requests run; models are known; certificates are checked."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from kvikk.cli.main import main
from kvikk.router.proxy.fleet import Fleet
from kvikk.router.proxy.origin import Origin, parse_origin
from kvikk.router.proxy.sources import follow_name
from tests.router.live import LiveRouter, StubReplica, events, router, stubs, until, wait_for

IN_TURN = ("--policy", "round_robin")
CERTIFICATE = Path(__file__).with_name("data") / "localhost.pem"


def names(live: LiveRouter, count: int = 12, model: str = "stub") -> set[str]:
    return {live.post(body={"model": model}).json()["from"] for _ in range(count)}


def test_replicas_are_added_drained_and_removed_by_admin_calls():
    with stubs(2) as (one, other), router([one], *IN_TURN) as live:
        assert live.admin("POST", "", json={"url": f"{other.url}/v1"}).status_code == 201
        again = live.admin("POST", "", json={"url": other.url})
        assert again.status_code == 400
        assert "already" in again.json()["error"]["message"]
        for body in ({}, {"url": 3}, {"url": "ftp://x"}, {"url": "http://u:secret@x"}):
            refused = live.admin("POST", "", json=body)
            assert refused.status_code == 400
            assert "secret" not in refused.text
        live.wait_until_well(2)
        assert names(live) == {"stub-0", "stub-1"}
        with live.http.stream(
            "POST",
            "/v1/completions",
            json={"model": "stub", "stub": {"chunks": 8, "held_after": 1}},
        ) as response:
            text, first = response.iter_text(), ""
            while not first.endswith("\n\n"):
                first += next(text)
            busy = response.headers["x-kvikk-replica"]
            assert live.admin("POST", f"/{busy}/drain").json()["draining"]
            assert names(live) == {"stub-0", "stub-1"} - {events(first)[0]["from"]}
            assert live.admin("POST", f"/{busy}/resume").json()["eligible"]
            assert names(live) == {"stub-0", "stub-1"}
            assert live.admin("DELETE", f"/{busy}").status_code == 202
            assert busy in live.replicas()  # until its answer is done
            one.release()
            other.release()
            assert events(first + "".join(text))[-1] == "[DONE]"
        wait_for(lambda: busy not in live.replicas())
        assert len(names(live)) == 1
        missing = live.admin("DELETE", f"/{busy}")
        assert missing.status_code == 404
        assert "there is 127.0.0.1:" in missing.json()["error"]["message"]


def test_a_watched_file_names_the_replicas(tmp_path: Path):
    file = tmp_path / "replicas"
    with stubs(2) as (one, other):
        file.write_text(f"# the fleet\n{one.url}  # first\n\n")
        with router([], "--replicas-file", str(file), wait=False) as live:
            live.wait_until_well(1)
            file.write_text(f"{one.url}\n{other.url}\n")
            live.wait_until_well(2)
            assert names(live) == {"stub-0", "stub-1"}
            file.write_text("this is no URL\n")  # half written: nothing changes
            whole = tmp_path / "whole"
            whole.write_text(f"{other.url}\n")
            whole.rename(file)
            wait_for(lambda: one.id not in live.replicas())
            assert names(live) == {"stub-1"}


def test_a_name_stands_for_all_of_its_addresses():
    with (
        stubs(1) as (one,),
        router([], "--replica-dns", f"http://localhost:{one.port}", wait=False) as live,
    ):
        live.wait_until_well(1)
        assert names(live) == {"stub-0"}
        sent = dict(one.state()["seen"][0]["headers"])
        assert sent["host"] == f"localhost:{one.port}"


def test_a_name_that_resolves_anew_changes_the_fleet():
    answers: list[list[str]] = [["10.0.0.1", "10.0.0.2"], [], ["10.0.0.2", "10.0.0.3"]]

    async def look_up(url: str) -> list[Origin]:
        now = answers.pop(0) if len(answers) > 1 else answers[0]
        return [parse_origin(url, address) for address in now]

    class Nobody:
        def joined(self, view, url) -> None: ...
        def left(self, slot) -> None: ...

    async def run() -> tuple[list[str], list[bytes]]:
        fleet = Fleet(Nobody(), None, 1, 0)
        task = asyncio.ensure_future(
            follow_name(fleet, "https://engines:8000", 1, print, look_up, 0.01)
        )
        await until(lambda: {one.id for one in fleet} == {"10.0.0.2:8000", "10.0.0.3:8000"})
        task.cancel()
        origins = [one.pool.origin for one in fleet]
        return [one.server_name for one in origins], [one.authority for one in origins]

    servers, authorities = asyncio.run(run())
    assert servers == ["engines"] * 2
    assert authorities == [b"engines:8000"] * 2


def test_each_model_goes_to_those_that_have_it():
    with (
        stubs(1, models="a,both") as (one,),
        stubs(1, models="b,both") as (other,),
        router([one, other]) as live,
    ):
        found = live.http.get("/v1/models").json()
        by_model = {card["id"]: card["replicas"] for card in found["data"]}
        assert by_model == {
            "a": [one.id],
            "b": [other.id],
            "both": [one.id, other.id],
        }
        assert live.http.get("/v1/models/both").json()["id"] == "both"
        assert live.http.get("/v1/models/c").status_code == 404
        for model, allowed in (("a", one), ("b", other)):
            answers = [live.post(body={"model": model}) for _ in range(4)]
            assert {one.headers["x-kvikk-replica"] for one in answers} == {allowed.id}
        both = {live.post(body={"model": "both"}).headers["x-kvikk-replica"] for _ in range(6)}
        assert both == {one.id, other.id}
        message = live.post(body={"model": "c"}).json()["error"]["message"]
        assert message == "no replica serves the model 'c'; there is 'a', 'b', 'both'"


def test_a_replica_over_tls_is_believed_by_its_certificate_alone():
    replica = StubReplica("stub-0", certificate=CERTIFICATE)
    try:
        with router([replica], "--ca-file", str(CERTIFICATE)) as live:
            assert live.post().json()["from"] == "stub-0"
            assert len(events(live.post({"chunks": 3}).text)) == 4
        with router([replica], wait=False) as live:
            wait_for(lambda: "certificate" in live.replicas()[replica.id]["problem"].lower())
            assert live.http.get("/healthz").status_code == 503
    finally:
        replica.close()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "no replicas"),
        (["--replica", "127.0.0.1:8000"], "is no replica's URL"),
        (["--replica", "http://user:hush@x:1"], "is no replica's URL"),
        (["--replica", "http://x:1", "--policy", "best"], "unknown policy 'best'"),
        (["--replicas-file", "/does/not/exist"], "cannot read"),
        (["--replica", "http://x:1", "--ca-file", "/does/not/exist"], "no certificates"),
        (["--replica", "http://x:1", "--host", "203.0.113.7"], "cannot listen"),
        (["--replica", "http://x:1", "--max-body", "much"], "much"),
        (["--replica", "http://x:1", "--admin-key", ""], "an empty key"),
    ],
)
def test_an_option_without_sense_is_one_clear_line(arguments, problem, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["kvikk", "route", "--port", "0", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert problem in told
    assert len(told.splitlines()) == 1
    assert "hush" not in told


def test_the_admins_view_is_json_with_what_an_operator_needs(live: LiveRouter, three_stubs):
    shown = live.replicas()[three_stubs[0].id]
    assert shown["url"] == three_stubs[0].url
    assert shown["models"] == ["stub"]
    assert json.dumps(shown)
