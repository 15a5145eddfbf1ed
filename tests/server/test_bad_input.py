import gzip
import http.client
import json
import socket

import pytest

CHAT = "/v1/chat/completions"
HELLO = {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
JSON = {"Content-Type": "application/json"}


def post(server, content, path=CHAT, headers=JSON):
    return server.http.post(path, content=content, headers=headers)


def check_error(response, status, message, parameter=None):
    """One clear line in the OpenAI shape."""
    assert response.status_code == status
    error = response.json()["error"]
    assert message in error["message"]
    assert "\n" not in error["message"]
    assert "Traceback" not in response.text
    assert error["param"] == parameter
    assert set(error) == {"message", "type", "param", "code"}


def check_still_serves(server):
    answer = server.post(CHAT, HELLO)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 1


@pytest.fixture(autouse=True)
def _still_serves(server):
    yield
    check_still_serves(server)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"model": "smollm2",}', "not valid JSON"),
        (b'{"model": "\xff\xfe"}', "not UTF-8 text"),
        (json.dumps(HELLO).encode("utf-16"), "not UTF-8 text"),
        (json.dumps(HELLO).encode("utf-8-sig"), "begins with a byte order mark"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"temperature": NaN}', "NaN is not a JSON number"),
        (b'{"seed": 1' + b"0" * 9999 + b"}", "too many digits"),
        (b"[]", "expected an object"),
        (b"null", "expected an object"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_body_that_is_no_json_object_is_refused(content, message, path, server):
    check_error(post(server, content, path), 400, message)


@pytest.mark.parametrize(
    ("fields", "parameter", "message"),
    [
        ({"temperature": -1}, "temperature", "must be from 0 to 2, not -1"),
        ({"temperature": 1e400}, None, "Infinity is not a JSON number"),
        ({"messages": []}, "messages", "at least one message"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "text parts"),
        ({"max_tokens": 10**30}, "max_tokens", "must be at most"),
        ({"model": 5}, "model", "expected a string, not 5"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "expected an object"),
        ({"n": 0}, "n", "at least 1"),
        ({"stop": [""]}, "stop[0]", "1 to 1024 characters"),
    ],
)
def test_a_field_that_makes_no_sense_is_named(fields, parameter, message, server):
    content = json.dumps(HELLO | fields).encode()
    check_error(post(server, content), 400, message, parameter)


def test_an_unknown_model_is_404_and_names_the_served_one(server):
    response = post(server, json.dumps(HELLO | {"model": "gpt\n-5\ud800"}).encode())
    check_error(response, 404, "this server has 'smollm2'", "model")


def test_a_prompt_over_the_context_is_refused_with_both_numbers(server, smollm2_tokenizer):
    content = "word " * 2500
    body = {"model": "smollm2", "prompt": content}
    response = post(server, json.dumps(body).encode(), "/v1/completions")
    check_error(response, 400, f"{len(smollm2_tokenizer.encode(content))} tokens", "prompt")
    check_error(response, 400, "limit is 2048", "prompt")
    assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "empty"),
        ([], "empty"),
        ([49152], "token id 49152"),
        ([2**31 - 1], "token id 2147483647"),
    ],
)
def test_a_prompt_without_tokens_or_with_foreign_ones_is_refused(prompt, message, server):
    body = {"model": "smollm2", "prompt": prompt}
    check_error(post(server, json.dumps(body), "/v1/completions"), 400, message, "prompt")


@pytest.mark.parametrize("depth", [300, 900, 950, 960, 970, 980, 990, 100_000])
def test_what_is_nested_deeply_is_served_or_refused_but_breaks_nothing(depth, server):
    """Near the limit it can be read, and not everywhere be written again."""
    nested = "[" * depth + "]" * depth
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": nested}}
    called = [{"role": "assistant", "tool_calls": [call]}, *HELLO["messages"]]
    schema = {"a": "NESTED"}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    for fields in ({"messages": called}, {"tools": [tool]}, {"guided_json": schema}):
        content = json.dumps(HELLO | fields).replace('"NESTED"', nested)
        response = post(server, content)
        assert response.status_code in (200, 400), response.text


def test_a_body_that_is_packed_is_refused_by_what_it_is_packed_with(server):
    packed = gzip.compress(json.dumps(HELLO).encode())
    response = post(server, packed, headers=JSON | {"Content-Encoding": "gzip"})
    check_error(response, 400, "content encoding 'gzip' is not supported")


def test_ten_megabytes_of_body_are_413_declared_or_chunked(server):
    body = b" " * 10_000_000
    check_error(post(server, body), 413, "longer than the limit of 4194304 bytes")
    pieces = (body[start : start + 65536] for start in range(0, len(body), 65536))
    check_error(post(server, pieces), 413, "longer than the limit")
    # One who asks first need not send it.
    with socket.create_connection(server.url.removeprefix("http://").split(":")) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 10000000\r\nExpect: 100-continue\r\n\r\n"
        )
        connection.settimeout(60)
        assert connection.makefile("rb").readline().startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "x"])
def test_another_content_type_is_refused_with_the_right_one(content_type, server):
    response = post(server, json.dumps(HELLO), headers={"Content-Type": content_type})
    check_error(response, 400, "'Content-Type: application/json'")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("GET", "/docs", 404),
    ],
)
def test_a_route_that_is_not_there_is_an_error_in_the_same_shape(method, path, status, server):
    check_error(server.http.request(method, path), status, path)


def test_a_connection_that_breaks_in_the_middle_of_its_body_is_nobodys_problem(server):
    host, port = server.url.removeprefix("http://").split(":")
    for start in (b"", b'{"model": '):
        connection = socket.create_connection((host, port))
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000\r\n\r\n" + start
        )
        connection.close()
    with socket.create_connection((host, port)) as connection:
        connection.sendall(b"\x16\x03\x01\x00nonsense\r\n\r\n")
        assert b" 400 " in connection.makefile("rb").readline()


def test_characters_that_only_json_can_hold_come_through(server):
    for content in ("\ud800", "\x00\x1d", "\ufffe", "😀" * 100):
        messages = [{"role": "user", "content": content}]
        response = post(server, json.dumps(HELLO | {"messages": messages}))
        assert response.status_code == 200


def test_an_offer_of_http_2_is_passed_over_and_the_body_is_read(server):
    body = json.dumps(HELLO).encode()
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{offer}Content-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(server.url.removeprefix("http://").split(":")) as connection:
        connection.settimeout(60)
        for _ in range(2):  # and the connection goes on
            connection.sendall(head.encode() + body)
            response = http.client.HTTPResponse(connection, method="POST")
            response.begin()
            assert response.status == 200
            assert json.loads(response.read())["object"] == "chat.completion"
