"""Charts are well-formed SVG whose points lie where their numbers say."""

import itertools
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvikk.errors import RequestError
from kvikk.plot import Chart, Series, svg, write_svg

SVG = "{http://www.w3.org/2000/svg}"
finite = st.floats(1e-6, 1e9)


def polylines(text: str) -> list[list[tuple[float, float]]]:
    lines = ElementTree.fromstring(text).iter(f"{SVG}polyline")
    return [
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        for line in lines
    ]


@given(
    st.lists(st.lists(st.tuples(finite, finite), min_size=1, max_size=8), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_any_numbers_make_a_chart_within_its_frame(
    lines: list[list[tuple[float, float]]], log_x: bool, log_y: bool
) -> None:
    series = [Series(f"line {index}", points) for index, points in enumerate(lines)]
    drawn = polylines(svg([Chart("title", "x", "y", series, log_x, log_y)]))
    assert [len(line) for line in drawn] == [len(line) for line in lines]
    assert all(71 <= x <= 697 and 63 <= y <= 349 for line in drawn for x, y in line)


def test_doublings_are_equally_far_apart_on_logarithmic_axes() -> None:
    points = [(2.0**power, 3.0 * 2**power) for power in range(5)]
    (line,) = polylines(svg([Chart("t", "x", "y", [Series("s", points)], True, True)]))
    steps = {(round(b[0] - a[0]), round(b[1] - a[1])) for a, b in itertools.pairwise(line)}
    assert len(steps) == 1


def numbers(text: str) -> set[str]:
    return {one.text or "" for one in ElementTree.fromstring(text).iter(f"{SVG}text")}


def test_what_is_counted_has_ticks_at_whole_numbers() -> None:
    text = svg([Chart("t", "turn", "seconds", [Series("s", [(1, 0.25), (2, 0.75)])])])
    assert {"0", "1", "2", "0.2", "0.8"} <= numbers(text)
    assert not {"0.5", "1.5"} & numbers(text)


def test_text_is_escaped_and_all_numbers_are_there_in_words() -> None:
    text = svg([Chart("a < b & c", "x", "y", [Series("<s>", [(1, 2.5), (2, 1234.5)])])])
    root = ElementTree.fromstring(text)
    described = root.find(f"{SVG}desc")
    assert described is not None
    assert "a < b & c" in (described.text or "")
    assert re.search(r"<s>: 1: 2.5, 2: 1234", described.text or "")


def test_both_colour_schemes_have_a_paper() -> None:
    text = svg([Chart("t", "x", "y", [Series("s", [(1, 1)])])])
    assert "prefers-color-scheme: dark" in text
    assert text.count(".paper{fill:") == 2


@pytest.mark.parametrize("name", ["plot.png", "plot", "nowhere/plot.svg"])
def test_a_name_that_cannot_be_a_plot_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match=r"\.svg|no folder"):
        write_svg(tmp_path / name, [])
