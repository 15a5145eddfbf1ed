"""Three formats, one conversation, one cache: the same tokens, whoever asks and however."""

from itertools import product

import pytest

from tests.server.formats import FORMATS, Told
from tests.server.live import LiveServer

SYSTEM = "You are the guide of a small museum of ships, and answer in one short sentence. " * 3
USER = "What did Viking ships have at the bow?"


@pytest.mark.parametrize("route", FORMATS)
def test_a_stream_says_what_a_whole_answer_says(route: str, idle_server: LiveServer) -> None:
    ask = FORMATS[route]
    first = ask(idle_server, SYSTEM, USER, 12, False)
    whole, streamed = (ask(idle_server, SYSTEM, USER, 12, stream) for stream in (False, True))
    assert streamed == whole
    full = first.prompt // 32 * 32
    assert first == Told(whole.text, 0, full, whole.prompt, 12)
    assert (whole.read, whole.written) == (full, 0)


def test_all_formats_make_the_same_prompt_of_a_conversation(idle_server: LiveServer) -> None:
    told = [ask(idle_server, SYSTEM, USER, 12, False) for ask in FORMATS.values()]
    assert len({(one.text, one.prompt, one.completion) for one in told}) == 1
    hit = (told[0].prompt - 1) // 32 * 32
    assert [one.read for one in told] == [0, hit, hit]


def test_the_sums_of_what_clients_were_told_are_the_ledgers(idle_server: LiveServer) -> None:
    def totals() -> dict[str, dict]:
        found = idle_server.get("/v1/kvikk/ledger?by=route&window=86400").json()["groups"]
        return {route: found.get(route, {"prompt_tokens": 0, "by_cause": {}}) for route in FORMATS}

    before = totals()
    told: dict[str, list[Told]] = {route: [] for route in FORMATS}
    users = [USER, USER + " And at the stern?", "Why?"]
    for user, stream, route in product(users, (True, False), FORMATS):
        told[route].append(FORMATS[route](idle_server, SYSTEM, user, 3, stream))
    for route, after in totals().items():
        asked = told[route]
        told_prompt = sum(one.prompt for one in asked)
        assert told_prompt == after["prompt_tokens"] - before[route]["prompt_tokens"]
        hits = [one["by_cause"].get("hit.device", 0) for one in (before[route], after)]
        assert sum(one.read for one in asked) == hits[1] - hits[0] > 0
        assert all(one.read + one.written <= one.prompt for one in asked)
