import asyncio
import json
import time

import httpx
import pytest

NUM_STREAMS = 200
ANSWER_TOKENS = 16


def body(index, **fields):
    # Some share a prefix with others, some do not; each of its own length.
    prompt = f"Stream {index % 7}: " + "and so on " * (index % 11) + f"number {index}"
    return {
        "model": "smollm2",
        "prompt": prompt,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | fields


async def read_stream(client, url, index, cut_after=None):
    """The usage at a stream's end; None if we cut it off after that many events."""
    usage = None
    async with client.stream("POST", f"{url}/v1/completions", json=body(index)) as response:
        assert response.status_code == 200
        num_events = 0
        async for line in response.aiter_lines():
            if not line:
                continue
            num_events += 1
            if num_events == cut_after:
                return None
            if line == "data: [DONE]":
                return usage
            usage = json.loads(line.removeprefix("data: ")).get("usage", usage)
    raise AssertionError("the stream ended without [DONE]")


def test_two_hundred_streams_of_which_a_third_is_cut_off_leave_nothing_behind(idle_server):
    server = idle_server
    tasks_before = server.get("/test/tasks").json()

    async def run():
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(limits=limits, timeout=250) as client:
            return await asyncio.gather(
                *(
                    # Cut at the first event, and later.
                    read_stream(client, server.url, i, 1 + i % 5 if i % 3 == 0 else None)
                    for i in range(NUM_STREAMS)
                )
            )

    usages = asyncio.run(run())
    cut = [index for index, usage in enumerate(usages) if usage is None]
    assert cut == list(range(0, NUM_STREAMS, 3))
    for usage in filter(None, usages):
        assert usage["completion_tokens"] == ANSWER_TOKENS
        assert isinstance(usage["prompt_tokens_details"]["cached_tokens"], int)
    for name in ("waiting", "running"):
        server.wait_for(lambda name=name: server.metric(f"vllm:num_requests_{name}") == 0)
    server.wait_until_idle()
    cache = server.cache()
    assert cache["live_blocks"] == 0
    assert cache["cached_blocks"] + cache["empty_blocks"] == cache["total_blocks"]
    server.wait_for(lambda: server.get("/test/tasks").json() <= tasks_before)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_frees_everything_at_once(stream, idle_server):
    server = idle_server
    generated_before = server.metric("vllm:generation_tokens_total")
    asked = body(0, max_tokens=1500, stream=stream)
    if stream:
        with server.http.stream("POST", "/v1/completions", json=asked) as response:
            next(response.iter_lines())
    else:
        del asked["stream_options"]
        server.leave("/v1/completions", asked)
    server.wait_until_idle()
    steps = server.metric("kvikk_steps_total")
    time.sleep(0.2)
    assert server.metric("kvikk_steps_total") == steps  # nothing goes on behind our back
    generated = server.metric("vllm:generation_tokens_total") - generated_before
    assert generated < 1400


def test_events_come_one_a_token_and_as_they_are_made(idle_server):
    with httpx.stream(
        "POST", f"{idle_server.url}/v1/completions", json=body(1, max_tokens=20), timeout=60
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        arrivals = [
            time.monotonic()
            for line in response.iter_lines()
            if line.startswith("data: {") and '"text"' in line
        ]
    # English text: nearly every token is whole characters and an event; one says why it ends.
    assert 16 <= len(arrivals) <= 21
    assert len(set(arrivals)) > 1
