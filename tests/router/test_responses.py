"""What a replica answers is read the same however it is cut, and whatever was read before."""

from itertools import pairwise

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvikk.router.proxy.response import ResponseReader

LENGTH = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nContent-Length: 7\r\n\r\n"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
ANSWERS = {
    "a length": LENGTH + b'{"a":1}',
    "another body": LENGTH + b"1234567",
    "chunks": CHUNKED + b"3\r\nabc\r\n1A\r\ndata: abcdefghijklmnopqrst\r\n0\r\n\r\n",
    "chunks that hold line ends": CHUNKED + b"5\r\n0\r\n\r\n\r\n2\r\n\r\n\r\n0\r\n\r\n",
    "trailers": CHUNKED + b"3\r\nabc\r\n0\r\nx-sum: 1\r\n\r\n",
    "extensions": CHUNKED + b"3;a=b\r\nabc\r\n0\r\n\r\n",
    "nothing": b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    "no body": b"HTTP/1.1 204 No Content\r\n\r\n",
    "no chunks": CHUNKED + b"0\r\n\r\n",
    "an interim answer": b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + LENGTH + b'{"a":1}',
    "an error": b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy",
}


def read(reader: ResponseReader, answer: bytes, cuts: list[int]) -> tuple[int, list, bytes, bool]:
    """One answer in pieces; also checks that it is whole with its last byte and not before."""
    reader.begin()
    in_head, body, passed_on = True, b"", b""
    bounds = sorted({0, len(answer), *(cut % len(answer) for cut in cuts)})
    for start, stop in pairwise(bounds):
        assert not reader.is_complete
        data = answer[start:stop]
        if in_head:
            rest = reader.read_head(data)
            if rest is None:
                continue
            in_head, data = False, rest
        if data:
            passed_on += data
            body += b"".join(reader.read_body(data))
    assert reader.is_complete
    assert reader.begun == 1
    assert answer.endswith(passed_on)
    return reader.response.status, reader.response.headers, body, reader.keeps


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(ANSWERS)), st.lists(st.integers(0, 200), max_size=4)),
        min_size=2,
        max_size=8,
    )
)
def test_answers_on_one_connection_are_what_each_is_by_itself(answers) -> None:
    reader = ResponseReader()
    for name, cuts in answers:
        alone = read(ResponseReader(), ANSWERS[name], [])
        assert read(reader, ANSWERS[name], cuts) == alone


@pytest.mark.parametrize(
    "bad", [b"g\r\nabc\r\n", b"3\r\nabcd\r\n", b"+3\r\nabc\r\n", b"3\nabc\r\n"]
)
@pytest.mark.parametrize("times", [0, 1])
def test_chunks_that_are_none_are_refused_also_behind_a_head_known_before(bad, times) -> None:
    reader = ResponseReader()
    for _ in range(times):
        read(reader, ANSWERS["chunks"], [])
    reader.begin()
    assert reader.read_head(CHUNKED) == b""
    assert reader.read_body(b"3\r\nabc\r\n") == [b"abc"]
    with pytest.raises(httptools.HttpParserError):
        reader.read_body(bad + b"0\r\n\r\n")


def test_whether_another_chunk_may_follow_is_known_at_every_byte() -> None:
    answer = ANSWERS["chunks"]
    for times in (0, 1):
        for stop in range(len(CHUNKED), len(answer) - 5):
            reader = ResponseReader()
            for _ in range(times):
                read(reader, answer, [])
            reader.begin()
            rest = reader.read_head(answer[:stop])
            if rest:
                reader.read_body(rest)
            body = answer[len(CHUNKED) : stop]
            whole = body in (b"", b"3\r\nabc\r\n") or len(body) == len(answer) - len(CHUNKED) - 5
            # The bytes of a size may have come already; then the parser has not been told of any.
            if whole:
                assert reader.at_boundary
            elif b"\r\n" in body.removeprefix(b"3\r\nabc\r\n"):
                assert not reader.at_boundary
