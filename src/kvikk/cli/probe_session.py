"""What every probe does around its experiment: say what it will cost, show it, tell it."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from kvikk.cli import report
from kvikk.errors import RequestError

if TYPE_CHECKING:
    from kvikk.probe.money import Estimate
    from kvikk.probe.run import Exchange, Run

_LABEL_WIDTH = 40


@dataclass(frozen=True)
class Settings:
    """What all probes are told on the command line."""

    base_url: str
    model: str | None
    api_key: str | None
    style: Literal["openai", "anthropic"]
    prices: str | None
    yes: bool
    max_cost: str | None
    record: Path | None
    no_nonce: bool
    as_json: bool
    plot: Path | None


@dataclass
class Session:
    """A probe that runs: its run, and what it has found out so far."""

    settings: Settings
    name: str
    run: "Run"
    found: dict[str, Any] = field(default_factory=dict)
    contaminated: list[str] = field(default_factory=list)
    interrupted: str | None = None
    is_stopped: bool = False

    def note_contamination(self, line: str | None) -> None:
        """Remember that an arm began with a hit."""
        if line is not None:
            self.contaminated.append(line)

    def document(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        spent = self.run.tariff.spent(exchange.counts for exchange in self.run.exchanges)
        return {
            "probe": self.name,
            "base_url": self.settings.base_url,
            "model": self.run.api.model,
            "style": self.settings.style,
            "prices": self.settings.prices,
            "spent_dollars": float(spent) if isinstance(spent, Decimal) else None,
            "contaminated": bool(self.contaminated),
            "interrupted": self.interrupted,
            **self.found,
            "exchanges": [asdict(exchange) for exchange in self.run.exchanges],
        }


@contextmanager
def probing(
    settings: Settings, name: str, planned: "Callable[[], Estimate]", setup: str = ""
) -> Iterator[Session]:
    """Reach the API, say what the run will cost and ask; afterwards print what was found.

    The block does the experiment and fills ``found``. Exits 1 for a run that was cut short, is
    contaminated or was told nothing; 130 for one that was stopped by Ctrl-C.
    """
    from kvikk.plot import check_plot_path
    from kvikk.probe.api import Api, Interrupted
    from kvikk.probe.money import Tariff
    from kvikk.probe.run import NOT_TOLD, Run

    if settings.plot is not None:
        check_plot_path(settings.plot)
    tariff = Tariff(settings.prices)
    api = Api(
        settings.base_url,
        settings.model or "",
        style=settings.style,
        api_key=settings.api_key,
        on_wait=lambda seconds, why: report.note(f"busy ({why}): again in {seconds:g} s"),
    )
    if not api.model:
        api.model = api.first_model()
    most = tariff.most(planned())
    max_cost = _max_cost(settings.max_cost, most)
    _announce(settings, name, api.model, planned(), most)
    if not api.is_local:
        _ask_leave(settings)
    run = Run(
        api,
        tariff,
        nonces=not settings.no_nonce,
        max_cost=max_cost,
        record=settings.record,
        setup=f"{name} {setup}",
        on_exchange=_show,
    )
    session = Session(settings, name, run)
    try:
        yield session
    except Interrupted as error:
        session.interrupted = str(error)
    except KeyboardInterrupt:
        session.interrupted = "by Ctrl-C"
        session.is_stopped = True
    if settings.as_json:
        print(json.dumps(session.document()))
    for line in session.contaminated:
        report.problem(line)
    is_blind = bool(run.exchanges) and not run.tells_reads
    if is_blind:
        report.problem(NOT_TOLD)
    if session.interrupted is not None:
        report.problem(f"cut short: {session.interrupted}")
        if settings.record is not None:
            report.note(f"the arms that are done are in {settings.record}; run it again to go on")
        else:
            report.note("with --record FILE the arms that are done are kept, to go on from")
    if session.is_stopped:
        raise typer.Exit(130)
    if session.contaminated or session.interrupted is not None or is_blind:
        raise typer.Exit(1)


def _announce(settings: Settings, name: str, model: str, planned: "Estimate", most: object) -> None:
    price = (
        f"at most ${most:.4f} by {settings.prices}"
        if isinstance(most, Decimal)
        else f"cost unknown: {getattr(most, 'why', most)}"
    )
    report.note(
        f"{name}: {model} at {settings.base_url}; at most {planned.requests:,} requests of "
        f"{planned.prompt_tokens:,} prompt tokens in all; {price}"
    )


def _max_cost(text: str | None, most: object) -> Decimal | None:
    """The limit in dollars. RequestError if it is none, or cannot be kept."""
    if text is None:
        return None
    try:
        limit = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        limit = Decimal(-1)
    if not limit.is_finite() or limit < 0:
        raise RequestError(f"--max-cost is {text!r}; expected dollars, such as 2.50")
    if not isinstance(most, Decimal):
        raise RequestError(f"--max-cost cannot be kept: {getattr(most, 'why', most)}")
    if most > limit:
        raise RequestError(
            f"this could cost ${most:.4f} if nothing is cached, and --max-cost is ${limit}"
        )
    return limit


def _ask_leave(settings: Settings) -> None:
    if settings.yes:
        return
    if not sys.stdin.isatty():
        raise RequestError("requests to another machine may cost money; say --yes to send them")
    typer.confirm("Send them?", abort=True, err=True)


def _show(exchange: "Exchange") -> None:
    """One line a request: what was sent, and where its tokens went."""
    counts = exchange.counts
    label = exchange.label
    if len(label) > _LABEL_WIDTH:
        label = label[: _LABEL_WIDTH - 1] + "…"
    report.note(
        f"{exchange.arm:>12} {exchange.number}  {label:<{_LABEL_WIDTH}} "
        f"{counts.prompt_tokens:>7,} tokens: {_told(counts.read_tokens)} read, "
        f"{_told(counts.written_tokens)} written, {counts.plain_tokens:>7,} plain "
        f"{1000 * counts.seconds:>8,.0f} ms"
    )


def _told(tokens: int | None) -> str:
    """A count, or a dash where the API does not tell it: that is not zero."""
    return f"{'-' if tokens is None else format(tokens, ','):>7}"


def json_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """Records that know how to be JSON, by name."""
    return {name: value.to_json() for name, value in found.items()}
