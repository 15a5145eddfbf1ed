"""The client reads what servers send, however the bytes are cut, and names every way to fail."""

import asyncio
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvikk.bench.answers import AnswerReader
from kvikk.bench.http_client import EventReader, HttpClient, ResponseParser, TransferError
from kvikk.errors import RequestError

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(pieces: list[bytes]) -> bytes:
    chunks = [b"%x;name=value\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece]
    return CHUNKED + b"".join(chunks) + b"0\r\n\r\n"


def feed_in_pieces(feed: Callable[[bytes], object], data: bytes, cuts: list[int]) -> None:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    for start, stop in itertools.pairwise(places):
        feed(data[start:stop])


cuts = st.lists(st.integers(0, 10_000), max_size=12)


@given(st.lists(st.binary(max_size=60), max_size=6), cuts)
def test_a_chunked_body_is_the_same_however_it_is_cut(pieces: list[bytes], at: list[int]) -> None:
    got: list[bytes] = []
    parser = ResponseParser(lambda response: got.append)
    feed_in_pieces(parser.feed, chunked(pieces), at)
    assert parser.is_done
    assert b"".join(got) == b"".join(pieces)


@given(st.binary(max_size=200), cuts)
def test_a_body_of_known_length_is_the_same_however_it_is_cut(body: bytes, at: list[int]) -> None:
    got: list[bytes] = []
    parser = ResponseParser(lambda response: got.append)
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    feed_in_pieces(parser.feed, head + body, at)
    assert parser.is_done
    assert b"".join(got) == body


@given(st.lists(st.sampled_from([b'{"a": 1}', b"[DONE]", b"x y"]), max_size=6), cuts)
def test_events_are_the_same_however_they_are_cut(events: list[bytes], at: list[int]) -> None:
    got: list[bytes] = []
    reader = EventReader()
    text = b"".join(b": comment\r\ndata: %b\r\n\r\n" % event for event in events)
    feed_in_pieces(lambda data: got.extend(reader.feed(data)), text, at)
    assert got == events


def event(text: str) -> bytes:
    return b"data: %b\n\n" % text.encode()


def test_only_tokens_count_as_tokens() -> None:
    reader = AnswerReader()
    reader.feed(event('{"choices": [{"delta": {"role": "assistant", "content": ""}}]}'))
    assert reader.first_token_s is None
    reader.feed(event('{"choices": [{"delta": {"content": "a"}}]}'))
    reader.feed(event('{"choices": [{"delta": {"reasoning_content": "hm"}}]}'))
    reader.feed(event('{"choices": [{"delta": {}, "finish_reason": "length"}]}'))
    reader.feed(event('{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}'))
    reader.feed(b"data: [DONE]\n\n")
    assert (reader.num_events, reader.text, reader.finish_reason) == (2, "a", "length")
    assert reader.is_done
    assert reader.counts is not None
    assert (reader.counts.prompt_tokens, reader.counts.cached_tokens) == (7, None)


def test_what_llama_cpp_tells_in_its_timings_is_what_it_reused() -> None:
    reader = AnswerReader()
    usage = '{"prompt_tokens": 7, "completion_tokens": 3}'
    reader.feed(event(f'{{"choices": [], "usage": {usage}, "timings": {{"cache_n": 5}}}}'))
    assert reader.counts is not None
    assert reader.counts.cached_tokens == 5


async def answered(
    reply: bytes, timeout_s: float = 60, hangs_up: bool = True
) -> TransferError | int:
    """What the client says of a server that sends these bytes and hangs up, or says no more."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        if not hangs_up:
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = HttpClient(f"http://127.0.0.1:{port}/v1", timeout_s=timeout_s)
        try:
            response = await client.stream("completions", b"{}", lambda data: None)
        except TransferError as error:
            return error
        return response.status


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (CHUNKED + b"5\r\nhel", "cut off"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello", "cut off"),
        (b"HTTP/1.1 200", "cut off"),
        (b"", "cut off"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "no HTTP"),
        (CHUNKED + b"xyz\r\n", "no HTTP"),
    ],
)
def test_an_answer_that_breaks_off_is_no_answer(reply: bytes, kind: str) -> None:
    error = asyncio.run(answered(reply))
    assert isinstance(error, TransferError)
    assert error.kind == kind


def test_an_answer_may_end_with_its_connection() -> None:
    assert asyncio.run(answered(b"HTTP/1.0 503 Busy\r\n\r\nlater")) == 503


def test_a_silent_server_is_not_waited_for_without_end() -> None:
    error = asyncio.run(answered(CHUNKED, timeout_s=0.5, hangs_up=False))
    assert isinstance(error, TransferError)
    assert error.kind == "timeout"


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "ftp://host/v1", "http://", "http://host:port/v1", "http://a b/v1"],
)
def test_what_is_no_base_url_is_said_at_once(url: str) -> None:
    with pytest.raises(RequestError, match=r"http://127\.0\.0\.1:8000/v1"):
        HttpClient(url)


def test_a_key_that_no_header_can_hold_is_refused_without_repeating_it() -> None:
    with pytest.raises(RequestError) as caught:
        HttpClient("http://127.0.0.1/v1", "geheim\r\nX: y")
    assert "geheim" not in str(caught.value)
