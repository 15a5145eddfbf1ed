"""What the probes found, as tables and charts."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from kvikk.cli import report
from kvikk.cli.probe_session import Settings

if TYPE_CHECKING:
    from kvikk.plot import Chart
    from kvikk.probe.floor import Floor
    from kvikk.probe.keys import Effect
    from kvikk.probe.lifetime import Life
    from kvikk.probe.placement import Arrangement
    from kvikk.probe.routing import Repeated
    from kvikk.probe.run import Exchange

_MOST_TRIED = 24


def placement(settings: Settings, done: "Mapping[str, Arrangement]") -> None:
    """Hits and bill of each arrangement; reads request by request in the chart."""
    from kvikk.probe.placement import ARRANGEMENTS

    rows = [
        (
            f"{name}  {ARRANGEMENTS[name]}",
            _hits(found.hits, found.of),
            f"{found.bill_ratio:.2f}x" if isinstance(found.bill_ratio, Decimal) else "unknown",
        )
        for name, found in done.items()
    ]
    _table(settings, ("arrangement", "hits", "bill, no caching = 1"), rows)
    unknown = {found.to_json()["bill_unknown"] for found in done.values()} - {None}
    for why in sorted(unknown):
        report.note(f"bill: {why}")
    if done and all(found.hits == 0 for found in done.values()):
        tokens = max(one.counts.prompt_tokens for found in done.values() for one in found.exchanges)
        report.note(
            f"nothing hit at all: the prompts of {tokens:,} tokens may be below the minimum "
            "(kvikk probe floor finds it), or nothing is cached here"
        )
    _reads(settings, "Tokens read, by arrangement", {name: x.exchanges for name, x in done.items()})


def routing(settings: Settings, done: "Mapping[str, Repeated]") -> None:
    """Hits with and without a key."""
    rows = [
        (name.replace("_", " "), _hits(found.to_json()["hits"], found.to_json()["of"]))
        for name, found in done.items()
    ]
    _table(settings, ("prompt_cache_key", "hits"), rows)
    _reads(settings, "Tokens read, same prompt", {name: x.exchanges for name, x in done.items()})


def floor(settings: Settings, found: "Floor") -> None:
    """Where caching begins, its step, and the lengths that say so."""
    from kvikk.plot import Chart, Series

    # Around where it begins: far off, lengths say little.
    begins = found.shortest_cached_tokens or 0
    nearest = sorted(found.samples, key=lambda sample: abs(sample.prompt_tokens - begins))
    shown = sorted(nearest[:_MOST_TRIED], key=lambda sample: sample.words)
    rows = [(f"{sample.prompt_tokens:,}", f"{sample.read_tokens:,}") for sample in shown]
    _table(settings, ("prompt tokens", "read the second time"), rows)
    if not settings.as_json:
        if found.floor_tokens is None:
            print(f"no prompt of up to {found.longest_uncached_tokens or 0:,} tokens was cached")
        else:
            least = "" if found.longest_uncached_tokens is not None else ", or with shorter ones"
            print(
                f"caching begins at {found.floor_tokens:,} tokens, with prompts of "
                f"{found.shortest_cached_tokens:,}{least}"
            )
            print(
                "no longer prompt read more"
                if found.step_tokens is None
                else f"and grows by {found.step_tokens:,}"
            )
    points = [(sample.prompt_tokens, sample.read_tokens) for sample in found.samples]
    lines = [Series("read the second time", points)]
    _plot(settings, [Chart("What of a prompt is cached", "prompt tokens", "tokens", lines)])


def lifetime(settings: Settings, found: "Life") -> None:
    """What each wait left."""
    from kvikk.plot import Chart, Series

    rows = [(_time(wait_s), "still there" if hit else "gone") for wait_s, hit in found.waits]
    _table(settings, ("after", "the entry is"), rows)
    if not settings.as_json:
        parts = []
        if found.survived_s is not None:
            parts.append(f"lives {_time(found.survived_s)} at least")
        if found.gone_s is not None:
            parts.append(f"is gone after {_time(found.gone_s)}")
        print(f"an entry that nobody reads {' and '.join(parts)}")
    line = Series("there", [(wait_s, float(hit)) for wait_s, hit in found.waits])
    _plot(settings, [Chart("How long an entry lives", "seconds", "1: there, 0: gone", [line])])


def keys(settings: Settings, done: "Mapping[str, Effect]") -> None:
    """What each change does to reuse."""
    rows = []
    for name, effect in done.items():
        if effect.is_hit is None:
            says = "refused"
        elif effect.is_hit:
            says = "reused all the same"
        else:
            says = "breaks reuse"
        counts = "" if effect.read_tokens is None else f"{effect.read_tokens:,}"
        rows.append((name, says, counts))
    _table(settings, ("changed", "the prompt is", "tokens read"), rows)
    for name, effect in done.items():
        if effect.refused is not None:
            report.note(f"{name}: {effect.refused}")


def _hits(hits: int | None, of: int) -> str:
    return "not told" if hits is None else f"{hits} of {of}"


def _table(settings: Settings, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if settings.as_json or not rows:
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False, soft_wrap=True).print(table)


def _reads(settings: Settings, title: str, arms: "Mapping[str, Sequence[Exchange]]") -> None:
    from kvikk.plot import Chart, Series

    lines = [
        Series(name, [(one.number, one.counts.read_tokens or 0) for one in exchanges])
        for name, exchanges in arms.items()
    ]
    _plot(settings, [Chart(title, "request", "tokens", lines)] if lines else [])


def _plot(settings: Settings, charts: "Sequence[Chart]") -> None:
    from kvikk.plot import write_svg

    if settings.plot is not None and charts:
        write_svg(settings.plot, charts)


def _time(seconds: float) -> str:
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"
