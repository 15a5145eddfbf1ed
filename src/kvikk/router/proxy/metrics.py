"""Figures for Prometheus, counted where they arise at the price of an addition."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)


class Histogram:
    """Counts of seconds by upper bound."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum_s = 0.0

    def observe(self, value_s: float) -> None:
        """Count one value."""
        self._counts[bisect_left(SECONDS, value_s)] += 1
        self._sum_s += value_s

    @property
    def count(self) -> int:
        """How many values."""
        return sum(self._counts)

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """The exposition's lines; ``labels`` like ``replica="a"``, or empty."""
        total, comma = 0, "," if labels else ""
        for bound, count in zip((*SECONDS, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {total}'
        braces = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braces} {self._sum_s:.9g}"
        yield f"{name}_count{braces} {total}"


class Answers:
    """What came of the requests of one replica: how many of each status, and when."""

    __slots__ = ("first_bytes", "statuses", "wholes")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.first_bytes = Histogram()
        self.wholes = Histogram()

    def count(self, status: int, first_byte_s: float | None, whole_s: float) -> None:
        """One more; ``first_byte_s`` is None where there was none."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if first_byte_s is not None:
            self.first_bytes.observe(first_byte_s)
            self.wholes.observe(whole_s)


Labels = Mapping[str, str]


def family(
    name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float]]
) -> Iterator[str]:
    """The lines of one metric; counters are to be named ``…_total``."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        braces = f"{{{label_text(labels)}}}" if labels else ""
        yield f"{name}{braces} {value:g}" if value < 1e6 else f"{name}{braces} {value:.0f}"


def histogram_family(
    name: str, text: str, samples: Sequence[tuple[Labels, Histogram]]
) -> Iterator[str]:
    """The lines of one histogram metric."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} histogram"
    for labels, histogram in samples:
        yield from histogram.lines(name, label_text(labels))


def label_text(labels: Labels) -> str:
    """Labels as they stand between the braces."""
    return ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
