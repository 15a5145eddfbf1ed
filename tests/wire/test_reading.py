import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvikk.errors import RequestError
from kvikk.wire.events import encode_event, encode_json
from kvikk.wire.reading import parse_json


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"{'a': 1}", "not valid JSON"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "a number has too many digits"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a": "\xff"}', r"not UTF-8 text \(byte 7\)"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8 text"),
    ],
)
def test_what_is_not_json_is_one_clear_line(body, message):
    with pytest.raises(RequestError, match=message) as caught:
        parse_json(body)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_field_at_fault_is_named_by_its_path():
    body = parse_json(b'{"a": [{"b": true}, {"b": "x"}], "c": {"d": 1e400}, "e": null}')
    first, second = body.get("a").items()
    for value, read, path, message in [
        (second.get("b"), lambda v: v.boolean(False), "a[1].b", "expected true or false, not a st"),
        (first.get("b"), lambda v: v.integer(0), "a[0].b", "expected a whole number, not true"),
        (first.get("c"), lambda v: v.string(), "a[0].c", "is missing; expected a string"),
        (body.get("c").get("d"), lambda v: v.number(0, 1), "c.d", "expected a finite number"),
        (body.get("c"), lambda v: v.elements(), "c", "expected a list, not an object"),
        (body.get("e"), lambda v: v.members(), "e", "is missing; expected an object"),
    ]:
        with pytest.raises(RequestError, match=message) as caught:
            read(value)
        assert caught.value.parameter == path
        assert str(caught.value).startswith(f"{path}: ")


def test_numbers_have_limits_that_errors_state():
    body = parse_json(b'{"small": -1, "large": 3.5, "huge": 1' + b"0" * 400 + b"}")
    with pytest.raises(RequestError, match="small: must be at least 0, not -1"):
        body.get("small").integer(0)
    with pytest.raises(RequestError, match=r"large: must be from 0 to 2, not 3\.5"):
        body.get("large").number(0, 2)
    for read in (lambda v: v.integer(0), lambda v: v.number(0, 2)):
        with pytest.raises(RequestError, match="not a number of that size"):
            read(body.get("huge"))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=[])),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


@given(_JSON)
@example("\x85\u2028\u2029\x0b\x1c\r\n")
def test_an_event_is_one_line_of_utf_8_that_any_reader_gets_back(value):
    event = encode_event(value)
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert len(event.decode().splitlines()) == 2  # by Python's wide notion of a line
    assert json.loads(event[len(b"data: ") :].decode("utf-8")) == value
    assert encode_json(value) == event[len(b"data: ") : -2]
