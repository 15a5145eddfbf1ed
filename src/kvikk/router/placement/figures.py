"""What the placement shows: figures for Prometheus, the same as JSON, the page that draws it."""

from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import orjson

from kvikk.router.placement.books import CAUSES
from kvikk.router.proxy.metrics import family

if TYPE_CHECKING:
    from kvikk.router.placement.aware import AwarePlacement
    from kvikk.router.placement.replica import Holder

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
_FILES = {
    file.name: file.read_bytes()
    for file in files("kvikk.router").joinpath("page").iterdir()
    if file.name.rpartition(".")[2] in _TYPES
}


def page(path: str) -> tuple[str, bytes] | None:
    """A file of the page: they hold no data."""
    name = "index.html" if path == "/" else path.removeprefix("/page/")
    return (_TYPES[name.rpartition(".")[2]], _FILES[name]) if name in _FILES else None


def fleet_json(placement: "AwarePlacement") -> tuple[str, bytes]:
    """``GET /v1/kvikk/fleet``: where prompt tokens went, what was attainable, who holds what."""
    return "application/json", orjson.dumps(fleet(placement))


def fleet(placement: "AwarePlacement") -> dict[str, Any]:
    """The fleet's books. Rates are of prompt tokens; attainable is what one cache would hit."""
    books = placement.books
    return {
        "policy": placement.policy.name,
        "prompt_tokens": books.prompt_tokens,
        "rates": books.rates(),
        "by_cause": {cause: books.total()[cause] for cause in CAUSES},
        "index_blocks": len(placement.index) + len(placement.learned),
        "replicas": [_replica(placement, holder) for holder in placement.holders.values()],
    }


def exposition(placement: "AwarePlacement") -> str:
    """Lines in Prometheus' text format."""
    return "\n".join(_lines(placement))


def _replica(placement: "AwarePlacement", holder: "Holder") -> dict[str, Any]:
    view, drift = holder.view, holder.drift
    tokens = placement.books.tokens.get(view.id, {})
    return {
        "id": view.id,
        "url": holder.url,
        "eligible": view.eligible,
        "running_requests": view.running_requests,
        "waiting_tokens": round(view.waiting_tokens),
        "prefill_tokens_per_s": round(view.prefill_tokens_per_s, 1),
        "capacity_tokens": view.capacity_tokens,
        "answers": placement.books.answers.get(view.id, 0),
        "by_cause": {cause: tokens.get(cause, 0) for cause in CAUSES},
        "source": "events" if holder.tells else "learned",
        "held_blocks": held_blocks(holder),
        "predicted_tokens": drift.predicted_tokens,
        "reported_tokens": drift.reported_tokens,
        "agreement": drift.agreement,
        "alarm": drift.alarm,
    }


def held_blocks(holder: "Holder") -> int:
    """Blocks that the replica is believed to hold."""
    return len(holder.told) if holder.tells and holder.told is not None else len(holder.learned)


def _lines(placement: "AwarePlacement") -> Iterator[str]:
    books, holders = placement.books, list(placement.holders.values())
    yield from family(
        "kvikk_router_prompt_tokens_total",
        "counter",
        "Prompt tokens of answered requests by what became of them.",
        [
            ({"replica": name, "cause": cause}, tokens[cause])
            for name, tokens in books.tokens.items()
            for cause in CAUSES
        ],
    )
    yield from family(
        "kvikk_router_hit_rate",
        "gauge",
        "Share of prompt tokens reused, achieved and by the oracles.",
        [({"of": name}, rate) for name, rate in books.rates().items()],
    )
    yield from family(
        "kvikk_router_index_blocks",
        "gauge",
        "Block keys that the router knows a holder of.",
        [({}, len(placement.index) + len(placement.learned))],
    )
    for name, kind, text, value in (
        ("held_blocks", "gauge", "Blocks the replica is believed to hold.", held_blocks),
        (
            "capacity_tokens",
            "gauge",
            "Tokens its cache holds, by its own word; 0 if it has not said.",
            lambda one: one.view.capacity_tokens or 0,
        ),
        (
            "prefill_tokens_per_second",
            "gauge",
            "Measured speed of computing prompts.",
            lambda one: one.view.prefill_tokens_per_s,
        ),
        (
            "predicted_tokens_total",
            "counter",
            "Prompt tokens the router expected to be reused.",
            lambda one: one.drift.predicted_tokens,
        ),
        (
            "reported_tokens_total",
            "counter",
            "Prompt tokens the replica said were reused.",
            lambda one: one.drift.reported_tokens,
        ),
        (
            "overpredicted_tokens_total",
            "counter",
            "Expected and not reused.",
            lambda one: one.drift.over_tokens,
        ),
        (
            "underpredicted_tokens_total",
            "counter",
            "Reused and not expected.",
            lambda one: one.drift.under_tokens,
        ),
        (
            "index_alarm",
            "gauge",
            "1 while predictions and reports never meet.",
            lambda one: float(bool(one.drift.alarm)),
        ),
    ):
        yield from family(
            f"kvikk_router_{name}",
            kind,
            text,
            [({"replica": holder.view.id}, value(holder)) for holder in holders],
        )
    listened = [one for one in holders if one.subscription is not None]
    for name, text, count in (
        ("batches", "Batches of KV events heard.", "batches"),
        ("gaps", "Gaps in their numbers.", "gaps"),
        ("repaired_gaps", "Gaps that a replay closed.", "repaired_gaps"),
    ):
        yield from family(
            f"kvikk_router_kv_event_{name}_total",
            "counter",
            text,
            [({"replica": one.view.id}, getattr(one.subscription, count)) for one in listened],
        )
