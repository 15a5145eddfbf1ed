"""Line charts as SVG, for whoever asks a verb to ``--plot``: no package, no fonts, no scripts.

A chart follows the reader's light or dark setting, tells its series apart by marker and dash as
well as by colour, and carries its numbers as text for those who cannot see it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from kvikk.errors import RequestError

WIDTH, HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 24, 64, 52
_FONT = "font-family='system-ui, sans-serif'"

# Okabe and Ito's colours, the ones that stand out from white and from black alike.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
# Marks around (0, 0).
_MARKERS = (
    "<circle r='4'/>",
    "<rect x='-4' y='-4' width='8' height='8'/>",
    "<path d='M0-5 5 4-5 4z'/>",
    "<path d='M0-5 5 0 0 5-5 0z'/>",
)
_STYLE = """<style>
.paper{fill:#ffffff} .ink{fill:#1a1a1a} .faint{fill:#5a5a5a}
.axis{stroke:#5a5a5a} .grid{stroke:#e3e3e3}
@media (prefers-color-scheme: dark){
.paper{fill:#111418} .ink{fill:#ececec} .faint{fill:#a8a8a8}
.axis{stroke:#a8a8a8} .grid{stroke:#30353b}
}</style>"""


@dataclass(frozen=True)
class Series:
    """One line of a chart: its name and its points (x, y), by growing x."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """Lines over one pair of axes. Labels say what is measured and its unit.

    An axis with ``log`` has ticks at powers (of two across, of ten upwards) and only takes values
    above 0; one without begins at 0 or at its lowest value if that is less, and counts in whole
    numbers if its values do.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False


def write_svg(path: Path, charts: Sequence[Chart]) -> None:
    """Write ``charts``, one below the other, to ``path``.

    Raises RequestError if the name does not end in ``.svg`` or cannot be written.
    """
    check_plot_path(path)
    try:
        path.write_text(svg(charts), encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{path}: cannot be written: {error.strerror}", "plot") from None


def check_plot_path(path: Path) -> None:
    """Raise RequestError unless a plot can be written there: before minutes are spent measuring."""
    if path.suffix.lower() != ".svg":
        raise RequestError(f"{path}: plots are SVG; give a name that ends in .svg", "plot")
    if not path.parent.is_dir():
        raise RequestError(f"{path}: there is no folder {path.parent}", "plot")


def svg(charts: Sequence[Chart]) -> str:
    """``charts``, one below the other, as one SVG document."""
    height = HEIGHT * len(charts)
    panels = "\n".join(
        f"<g transform='translate(0 {HEIGHT * index})'>\n{_panel(chart)}\n</g>"
        for index, chart in enumerate(charts)
    )
    title = "; ".join(chart.title for chart in charts)
    told = "\n".join(_in_words(chart) for chart in charts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' "
        f"height='{height}' role='img' aria-labelledby='title desc' {_FONT} font-size='13'>\n"
        f"<title id='title'>{escape(title)}</title>\n<desc id='desc'>{escape(told)}</desc>\n"
        f"{_STYLE}\n<rect class='paper' width='{WIDTH}' height='{height}'/>\n{panels}\n</svg>\n"
    )


@dataclass(frozen=True)
class _Axis:
    """Values to pixels along one axis: ``low`` lies at ``start_px``, ``high`` at ``stop_px``."""

    low: float
    high: float
    start_px: float
    stop_px: float
    log: bool
    ticks: tuple[float, ...]

    def pixels(self, value: float) -> float:
        scale: Callable[[float], float] = math.log if self.log else float
        share = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))
        return self.start_px + share * (self.stop_px - self.start_px)


def _panel(chart: Chart) -> str:
    """One chart in a box of WIDTH x HEIGHT:

    title, legend      _TOP
    |  lines           between _LEFT and _RIGHT
    +-------------
    x label            _BOTTOM
    """
    xs = [x for series in chart.series for x, _ in series.points]
    ys = [y for series in chart.series for _, y in series.points]
    across = _axis(xs, _LEFT, WIDTH - _RIGHT, log=chart.log_x, base=2)
    upwards = _axis(ys, HEIGHT - _BOTTOM, _TOP, log=chart.log_y, base=10)
    middle_x, middle_y = (_LEFT + WIDTH - _RIGHT) / 2, (_TOP + HEIGHT - _BOTTOM) / 2
    lines = (
        _line(series.points, index, across, upwards) for index, series in enumerate(chart.series)
    )
    parts = [
        _text(chart.title, f"x='{_LEFT}' y='24' font-size='16' font-weight='600'", "ink"),
        *_legend(chart.series),
        *_grid(across, upwards),
        _text(chart.x_label, f"x='{middle_x}' y='{HEIGHT - 12}' text-anchor='middle'"),
        _text(
            chart.y_label, f"transform='translate(16 {middle_y}) rotate(-90)' text-anchor='middle'"
        ),
        *lines,
    ]
    return "\n".join(parts)


def _text(text: str, place: str, kind: str = "faint") -> str:
    return f"<text class='{kind}' {place}>{escape(text)}</text>"


def _grid(across: _Axis, upwards: _Axis) -> Iterator[str]:
    bottom, left, right = HEIGHT - _BOTTOM, _LEFT, WIDTH - _RIGHT
    for tick in upwards.ticks:
        y = upwards.pixels(tick)
        yield f"<line class='grid' x1='{left}' x2='{right}' y1='{y:.1f}' y2='{y:.1f}'/>"
        yield _text(_number(tick), f"x='{left - 8}' y='{y + 4:.1f}' text-anchor='end'")
    for tick in across.ticks:
        x = across.pixels(tick)
        yield f"<line class='axis' x1='{x:.1f}' x2='{x:.1f}' y1='{bottom}' y2='{bottom + 5}'/>"
        yield _text(_number(tick), f"x='{x:.1f}' y='{bottom + 20}' text-anchor='middle'")
    yield f"<line class='axis' x1='{left}' x2='{right}' y1='{bottom}' y2='{bottom}'/>"


def _legend(series: Sequence[Series]) -> Iterator[str]:
    x = float(_LEFT)
    for index, one in enumerate(series):
        colour, dash = _colour(index), _dash(index)
        yield (
            f"<g transform='translate({x:.0f} 44)' fill='{colour}'>"
            f"<line x2='26' stroke='{colour}' stroke-width='2'{dash}/>"
            f"<g transform='translate(13 0)'>{_marker(index)}</g>"
            f"<text class='ink' x='32' y='4'>{escape(one.name)}</text></g>"
        )
        x += 52 + 7 * len(one.name)


def _line(points: Sequence[tuple[float, float]], index: int, across: _Axis, upwards: _Axis) -> str:
    colour = _colour(index)
    places = [(across.pixels(x), upwards.pixels(y)) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    marks = "".join(
        f"<g transform='translate({x:.1f} {y:.1f})'>{_marker(index)}</g>" for x, y in places
    )
    return (
        f"<g fill='{colour}'><polyline points='{path}' fill='none' stroke='{colour}' "
        f"stroke-width='2'{_dash(index)}/>{marks}</g>"
    )


def _axis(
    values: Sequence[float], start_px: float, stop_px: float, *, log: bool, base: int
) -> _Axis:
    assert values, "a chart without points"
    low, high = min(values), max(values)
    if log:
        assert low > 0, "a logarithmic axis takes values above 0"
        ticks = _log_ticks(low, high, base)
        return _Axis(ticks[0], ticks[-1], start_px, stop_px, True, ticks)
    low = min(low, 0.0)
    step_size = _round_step((high - low) / 6 or 1.0)
    if all(float(value).is_integer() for value in values):
        step_size = max(step_size, 1.0)  # there is no turn one and a half
    count = max(1, math.ceil((high - low) / step_size - 1e-9))
    ticks = tuple(low + index * step_size for index in range(count + 1))
    return _Axis(low, ticks[-1], start_px, stop_px, False, ticks)


def _log_ticks(low: float, high: float, base: int) -> tuple[float, ...]:
    """Powers of ``base`` around [low, high]; with ten also 2 and 5 of each, where they are few."""
    # log2 and log10 are exact at powers, where a quotient of logarithms is not.
    log = math.log2 if base == 2 else math.log10
    first, last = math.floor(log(low)), math.ceil(log(high))
    last = max(last, first + 1)
    # Not so many that their numbers run into each other.
    stride = -(-(last - first) // 12)
    powers = [float(base) ** power for power in range(first, last + stride, stride)]
    if base == 10 and len(powers) <= 3:
        finer = [factor * power for power in powers for factor in (1, 2, 5)]
        below = max(tick for tick in finer if tick <= low * (1 + 1e-9))
        above = min(tick for tick in finer if tick >= high * (1 - 1e-9) and tick > below)
        return tuple(tick for tick in finer if below <= tick <= above)
    return tuple(powers)


def _round_step(step: float) -> float:
    """The next of 1, 2, 5, 10 … times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.4g}"


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _dash(index: int) -> str:
    dash = _DASHES[index % len(_DASHES)]
    return f" stroke-dasharray='{dash}'" if dash else ""


def _marker(index: int) -> str:
    return _MARKERS[index % len(_MARKERS)]


def _in_words(chart: Chart) -> str:
    """The chart's numbers, one line a series."""
    lines = [f"{chart.title}. {chart.y_label} over {chart.x_label}."]
    for series in chart.series:
        points = ", ".join(f"{_number(x)}: {y:.4g}" for x, y in series.points)
        lines.append(f"{series.name}: {points}.")
    return "\n".join(lines)
