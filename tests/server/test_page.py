"""The page in a real browser: what it shows is what the server says."""

import json
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser

from kvikk.cache.blocks import BlockState
from kvikk.server.conversations import Conversations
from kvikk.server.feed import changed_runs
from kvikk.server.options import ServerOptions
from tests.server.browser import OpenPage, chromium, opened
from tests.server.conftest import ENGINE
from tests.server.live import LiveServer, start

HOSTILE = "</p><img src=x onerror=\"document.title='o'\"><script>document.title='o'</script>"
OVERFLOWS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
DOUBLED = "You guide visitors through a museum of ships and answer in one sentence. " * 4


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def page(browser: Browser, server: LiveServer) -> Iterator[OpenPage]:
    with opened(browser, server.url) as found:
        found.page.wait_for_selector("[data-state=live]")
        yield found
        assert found.problems == []
        assert found.hosts == {urlsplit(server.url).netloc}


def shown_blocks(page: OpenPage) -> dict[str, int]:
    return {name: page.number(f"#count-{name}") for name in ("live", "shared", "cached", "empty")}


def test_the_map_counts_what_the_server_counts(page: OpenPage, idle_server: LiveServer) -> None:
    body = {"model": "smollm2", "prompt": [5] * 200, "max_tokens": 1}
    assert idle_server.post("/v1/completions", body).status_code == 200
    idle_server.wait_until_idle()
    cache = idle_server.cache()
    assert cache["cached_blocks"] >= 6
    cached = re.compile(f"^{cache['cached_blocks']:,}$")
    page.page.locator("#count-cached").filter(has_text=cached).wait_for()
    shown = shown_blocks(page)
    assert shown["live"] + shown["shared"] == cache["live_blocks"]
    assert shown["empty"] == cache["empty_blocks"]
    assert sum(shown.values()) == cache["total_blocks"]
    label = f'#maps canvas[aria-label*=" {cache["cached_blocks"]:,} cached"]'
    page.page.locator(label).wait_for(state="attached")  # it is drawn with the next frame


def test_a_turn_streams_and_shows_what_it_reused(page: OpenPage) -> None:
    page.page.locator("#system").evaluate("(field, text) => field.value = text", DOUBLED)
    page.ask("What did Viking ships have at the bow?")
    first = page.page.locator(".turn .answer").inner_text()
    page.ask("And at the stern?")
    told = page.page.locator(".turn .reuse p").last.inner_text()
    reused, prompt = map(int, re.search(r"reused (\d+) of (\d+) prompt tokens", told).groups())
    assert first
    assert 64 <= reused < prompt
    # Both turns are one conversation among the requests.
    title = page.page.locator(".session h3").first
    title.filter(has_text="2 turns").wait_for()


def test_hostile_text_stays_text(page: OpenPage) -> None:
    page.page.locator("#chat-new").click()
    page.ask(HOSTILE)
    assert page.page.locator(".turn .question").inner_text() == HOSTILE
    assert page.page.locator("main img, main script").count() == 0
    assert page.page.title() == "kvikk · smollm2"


def test_a_story_opens_with_the_keyboard_and_is_the_servers(
    page: OpenPage, server: LiveServer
) -> None:
    for clock in ("9:59:58", "10:00:07"):
        text = f"It is {clock} <b>o'clock</b>. {DOUBLED}"
        body = {"model": "smollm2", "prompt": text, "max_tokens": 1}
        request_id = server.post("/v1/completions", body).json()["id"]
    row = page.page.locator(f"button[aria-controls='story-{request_id}']")
    row.wait_for()
    row.focus()
    page.page.keyboard.press("Enter")
    story = page.page.locator(f"#story-{request_id}")
    story.locator(".headline").wait_for()
    told = server.get(f"/v1/kvikk/requests/{request_id}").json()["story"]
    assert story.locator(".headline").inner_text().lower() == told["headline"].lower()
    assert any(finding["cause"] == "moved" for finding in told["findings"])
    shown = story.locator(".findings").inner_text()
    assert all(finding["text"] in shown for finding in told["findings"])
    assert row.get_attribute("aria-expanded") == "true"
    page.page.keyboard.press("Enter")
    assert story.is_hidden()


def test_the_rates_are_those_of_the_ledger(page: OpenPage, server: LiveServer) -> None:
    rates = server.get("/v1/kvikk/ledger").json()["rates"]
    share = 100 * rates["achieved"]
    text = f"{share:.1f} %" if 0 < share < 10 else f"{int(share + 0.5)} %"
    page.page.locator("#achieved").filter(has_text=text).wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_telephone(
    browser: Browser, server: LiveServer, scheme: str
) -> None:
    with opened(browser, server.url, width=400, color_scheme=scheme) as found:
        found.page.wait_for_selector("[data-state=live]")
        found.page.locator("button.request").first.click()
        found.page.locator(".headline").first.wait_for()
        assert not found.page.evaluate(OVERFLOWS)
        assert found.problems == []
        background = found.page.evaluate(
            "getComputedStyle(document.body.parentNode).backgroundColor"
        )
        assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == (scheme == "dark")


def test_a_key_is_asked_for_and_a_tenant_sees_its_own(browser: Browser) -> None:
    options = ServerOptions(ENGINE, port=0, api_keys=("one", "two"), operator_key="boss")
    with start(options) as server:
        for key in ("one", "two"):
            body = {"model": "smollm2", "prompt": [5] * 40, "max_tokens": 1}
            bearer = {"Authorization": f"Bearer {key}"}
            assert server.post("/v1/completions", body, headers=bearer).status_code == 200
        with opened(browser, server.url) as found:
            for key, rows in (("one", 1), ("boss", 2)):
                found.page.evaluate("sessionStorage.clear()")
                found.page.reload()
                found.page.locator("#key").fill(key)
                found.page.locator("#key").press("Enter")
                found.page.wait_for_selector("[data-state=live]")
                found.page.locator("button.request").nth(rows - 1).wait_for()
                assert found.page.locator("button.request").count() == rows
                assert found.page.locator("#no-map").is_visible() == (key == "one")
            # The browser itself says in its console that the key was asked for.
            assert all("401" in problem for problem in found.problems)


def test_its_files_are_public_and_nothing_else_is_a_file(server: LiveServer) -> None:
    found = server.get("/")
    assert "default-src 'none'" in found.headers["content-security-policy"]
    assert server.get("/page/main.js").headers["content-type"].startswith("text/javascript")
    for name in ("../routes/page.py", "..%2froutes%2fpage.py", "nothing.js", "__init__.py"):
        assert server.get(f"/page/{name}").status_code == 404


def test_a_watcher_that_goes_is_forgotten(server: LiveServer) -> None:
    before = server.get("/test/tasks").json()
    for _ in range(3):
        with server.http.stream("GET", "/v1/kvikk/live") as feed:
            event = next(line for line in feed.iter_lines() if line)
            assert json.loads(event.removeprefix("data: "))["groups"]
    server.wait_for(lambda: server.get("/test/tasks").json() <= before)


@given(st.lists(st.sampled_from(BlockState), max_size=60), st.data())
def test_the_runs_told_turn_the_old_map_into_the_new(now: list[int], data: st.DataObject) -> None:
    old = data.draw(st.lists(st.sampled_from(BlockState), min_size=len(now), max_size=len(now)))
    states = np.array(old, np.uint8)
    for start_block, stop_block, name in changed_runs(bytes(old), bytes(now)):
        assert (states[start_block:stop_block] != BlockState[name.upper()]).all()
        states[start_block:stop_block] = BlockState[name.upper()]
    assert states.tolist() == now


def test_turns_are_told_from_their_tokens() -> None:
    places = Conversations()
    assert places.place("a1", "me", b"system hello") == "a1"
    assert places.place("b1", "me", b"system other") == "b1"
    assert places.place("a2", "me", b"system hello answer more") == "a1"
    assert places.place("c1", "you", b"system hello answer more and more") == "c1"
    assert places.place("a3", "me", b"system hello answer more and more") == "a1"
    assert places.place("d1", "me", None) == "d1"
