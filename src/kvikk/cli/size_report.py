"""How sizes are shown: a page a person reads at a glance, one JSON document, a plot."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvikk.cli.columns import columns
from kvikk.shapes.accelerators import TABLE_DATE
from kvikk.shapes.quantities import format_bytes
from kvikk.shapes.sizing import AtContext, Sizing
from kvikk.shapes.sizing_input import Sized


def print_json(sized: Sequence[Sized]) -> None:
    """One document: the model's figures, or those of several under ``models``."""
    documents = [_document(one) for one in sized]
    print(json.dumps(documents[0] if len(documents) == 1 else {"models": documents}))


def _document(one: Sized) -> dict[str, Any]:
    document = _figures(one.sizing)
    if one.published is not None:
        document["without_what_if"] = _figures(one.published)
    return document


def _figures(sizing: Sizing) -> dict[str, Any]:
    context = sizing.context_tokens
    at = sizing.at(context)
    reserved = sizing.reserved(context)
    choices = sizing.choices
    figures: dict[str, Any] = {
        "model": sizing.name,
        "model_type": sizing.shape.model_type,
        "num_layers": sizing.shape.num_layers,
        "key_dtype": sizing.dtypes.key.name,
        "value_dtype": sizing.dtypes.value.name,
        "bytes_per_token": sizing.cost.bytes_per_token,
        "bytes_per_token_at_context": sizing.cost.bytes_per_token_at(context),
        "fixed_bytes_per_conversation": sizing.cost.fixed_bytes,
        "context_tokens": context,
        "bytes_at_context": at.logical_bytes,
        "windows_full_at_tokens": sizing.flat_from_tokens,
        "engine": choices.engine,
        "tp": choices.options.tp,
        "reserved_bytes": reserved.total_bytes,
        "reserved_rules": reserved.rules,
        "rank_bytes_per_token": sizing.rank_cost.bytes_per_token,
        "rank_bytes_at_context": sizing.rank_cost.bytes_at(context),
        "weight_bytes": sizing.weight_bytes,
        "formula": [
            {
                "text": term.text,
                "kind": term.kind,
                "bytes_per_token": term.bytes_per_token,
                "window_tokens": term.window_tokens,
                "fixed_bytes": term.fixed_bytes,
            }
            for term in sizing.terms
        ],
        "context_beyond_weights": sizing.context_beyond_weights(choices.num_conversations or 1),
        "tokens_beyond_weights": sizing.tokens_beyond_weights,
        "at_contexts": [_row(sizing, sizing.at(tokens)) for tokens in sizing.ladder()],
    }
    if choices.memory_bytes is not None:
        figures |= {
            "memory_bytes": choices.memory_bytes,
            "conversations": at.conversations,
            "total_tokens": None if at.conversations is None else at.conversations * context,
        }
        if sizing.device is not None:
            figures["cache_bytes"] = sizing.device.cache_bytes
        if choices.num_conversations is not None:
            figures["longest_context_tokens"] = sizing.longest_context(choices.num_conversations)
    figures |= _floor(sizing, at)
    return figures


def _row(sizing: Sizing, at: AtContext) -> dict[str, Any]:
    return {
        "context_tokens": at.context_tokens,
        "bytes_at_context": at.logical_bytes,
        "reserved_bytes": at.reserved_bytes,
        "conversations": at.conversations,
        **_floor(sizing, at),
    }


def _floor(sizing: Sizing, at: AtContext) -> dict[str, Any]:
    if at.floor is None:
        return {}
    price = sizing.choices.price_per_hour
    return {
        "floor_ms_per_token": at.floor.step_s * 1000,
        "floor_tokens_per_s": at.floor.tokens_per_s,
        "floor_conversations": at.floor.num_conversations,
        **(
            {}
            if price is None
            else {"floor_cost_per_million_tokens": at.floor.cost_per_million_tokens(price)}
        ),
    }


def print_sizing(one: Sized) -> None:
    """One model: its formula, the three figures, and what fits."""
    sizing = one.sizing
    cost, context = sizing.cost, sizing.context_tokens
    figures = [["each token", *_amount(cost.bytes_per_token)]]
    if sizing.flat_from_tokens is not None:
        then = cost.bytes_per_token_at(context)
        figures.append([f"each token after {context:,}", *_amount(then)])
    figures.append(["each conversation", *_amount(cost.fixed_bytes)])
    figures.append([f"at {context:,} tokens", *_amount(cost.bytes_at(context))])
    choices = sizing.choices
    if choices.engine != "logical":
        reserved = sizing.reserved(context)
        where = f" on each of {choices.options.tp} devices" * (choices.options.tp > 1)
        figures.append([f"{reserved.engine} reserves{where}", *_amount(reserved.total_bytes)])
    if sizing.weight_bytes is not None:
        figures.append(["weights", *_amount(sizing.weight_bytes)])
    if one.published is not None:
        published = one.published.cost.bytes_at(context)
        figures.append(["without the what-if", *_amount(published)])
    parts = (
        f"{sizing.name}  ({sizing.shape.model_type}, {sizing.shape.num_layers} layers)",
        "\n".join(_formula(sizing)),
        columns(figures, right=(1, 2)),
        _ladder(sizing),
        "\n".join(_remarks(sizing)),
    )
    print("\n\n".join(part for part in parts if part))


def _formula(sizing: Sizing) -> list[str]:
    lines = []
    for term in sizing.terms:
        if term.fixed_bytes:
            unit = f" a conversation ({term.kind})"
        else:
            kind = "" if term.kind == "full" else f" ({term.kind})"
            window = "" if term.window_tokens is None else f" of the last {term.window_tokens:,}"
            unit = f" a token{window}{kind}"
        amount = term.fixed_bytes or term.bytes_per_token
        lines.append(f"{term.text} = {_exact(amount)} bytes = {format_bytes(amount)}{unit}")
    return lines


def _exact(amount: float) -> str:
    return f"{amount:,.0f}" if amount == int(amount) else f"{amount:,.1f}"


def _amount(amount: float) -> list[str]:
    return [f"{_exact(amount)} bytes", format_bytes(amount)]


def _ladder(sizing: Sizing) -> str:
    """The figures at growing contexts."""
    rows = [sizing.at(tokens) for tokens in sizing.ladder()]
    engine, price = sizing.choices.engine, sizing.choices.price_per_hour
    with_memory = sizing.device is not None
    with_floor = any(row.floor is not None for row in rows)
    header = ["context", "logical"] + [engine] * (engine != "logical")
    header += ["conversations", "tokens"] * with_memory
    header += ["ms a token", "tokens/s"] * with_floor
    header += ["cost of 1M"] * (with_floor and price is not None)
    table = [header]
    for row in rows:
        cells = [f"{row.context_tokens:,}", format_bytes(row.logical_bytes)]
        cells += [format_bytes(row.reserved_bytes)] * (engine != "logical")
        if with_memory:
            fitting = row.conversations or 0
            cells += [f"{fitting:,}", f"{fitting * row.context_tokens:,}"]
        if with_floor:
            floor = row.floor
            cells += (
                ["-", "-"]
                if floor is None
                else [f"{floor.step_s * 1000:.2f}", f"{floor.tokens_per_s:,.0f}"]
            )
            if price is not None:
                cells.append(
                    "-" if floor is None else f"{floor.cost_per_million_tokens(price):.3g}"
                )
        table.append(cells)
    return columns(table, right=range(len(header)))


def _remarks(sizing: Sizing) -> list[str]:
    """What the figures mean, a line each."""
    choices, context = sizing.choices, sizing.context_tokens
    remarks = []
    if choices.engine != "logical":
        remarks += [f"{choices.engine}: {rule}" for rule in sizing.reserved(context).rules]
    if choices.options.slots > 1 and choices.engine != "llamacpp":
        remarks.append("slots share a context under --engine llamacpp only")
    if choices.memory_bytes is not None:
        remarks.append(
            f"memory: {format_bytes(choices.memory_bytes)} a device; GB is read as GiB, 2³⁰ bytes"
        )
        if sizing.device is None:
            remarks.append("how many fit cannot be said without the weights: give --weights")
    if sizing.weight_bytes is not None:
        fitting = sizing.conversations(context)
        for many in sorted({1, choices.num_conversations or fitting or 1}):
            who = "one conversation's cache" if many == 1 else f"{many:,} conversations' cache"
            beyond = sizing.context_beyond_weights(many)
            remarks.append(
                f"{who} stays smaller than the weights"
                if beyond is None
                else f"{who} outgrows the weights at {beyond:,} tokens each"
            )
    if sizing.tokens_beyond_weights is not None:
        remarks.append(
            f"from {sizing.tokens_beyond_weights:,} tokens on, of all conversations together, "
            "the cache is larger than the weights"
        )
    if choices.num_conversations is not None:
        longest = sizing.longest_context(choices.num_conversations)
        if longest is not None:
            remarks.append(
                f"{choices.num_conversations:,} conversations fit up to {longest:,} tokens each"
            )
    if sizing.at(context).floor is not None:
        remarks.append(
            "ms a token is a floor: all weights and caches read once, nothing computed, "
            "with as many conversations as the row says"
            + f", at most {choices.num_conversations or 0:,}"
            * bool(choices.num_conversations)
        )
        remarks.append(f"the table of devices is of {TABLE_DATE}")
    return remarks


def print_comparison(sized: Sequence[Sized]) -> None:
    """Models side by side, a row each; with a what-if, the model without it above."""
    named = [
        (name, sizing)
        for one in sized
        for name, sizing in ((one.sizing.name, one.published), (_row_name(one), one.sizing))
        if sizing is not None
    ]
    sizings = [sizing for _, sizing in named]
    choices = sizings[0].choices
    with_memory = any(sizing.device is not None for sizing in sizings)
    rows = [sizing.at(sizing.context_tokens) for sizing in sizings]
    with_floor = any(row.floor is not None for row in rows)
    price = choices.price_per_hour if with_floor else None
    header = ["model", "layers", "a token", "then", "fixed", "context", "logical"]
    header += [choices.engine] * (choices.engine != "logical")
    header += ["weights"] + ["conversations"] * with_memory + ["ms a token"] * with_floor
    header += ["cost of 1M"] * (price is not None)
    table = [header]
    for (name, sizing), at in zip(named, rows, strict=True):
        cost = sizing.cost
        cells = [
            name,
            f"{sizing.shape.num_layers}",
            format_bytes(cost.bytes_per_token),
            format_bytes(cost.bytes_per_token_at(at.context_tokens)),
            format_bytes(cost.fixed_bytes),
            f"{at.context_tokens:,}",
            format_bytes(at.logical_bytes),
        ]
        cells += [format_bytes(at.reserved_bytes)] * (choices.engine != "logical")
        cells.append("-" if sizing.weight_bytes is None else format_bytes(sizing.weight_bytes))
        if with_memory:
            cells.append("-" if at.conversations is None else f"{at.conversations:,}")
        if with_floor:
            cells.append("-" if at.floor is None else f"{at.floor.step_s * 1000:.2f}")
        if price is not None:
            cells.append(
                "-" if at.floor is None else f"{at.floor.cost_per_million_tokens(price):.3g}"
            )
        table.append(cells)
    print(columns(table, right=range(1, len(header))))


def _row_name(one: Sized) -> str:
    return one.sizing.name if one.published is None else "  with the what-if"


def print_check(path: Path, one: Sized, *, as_json: bool) -> None:
    """A log's figures beside ours, line by line."""
    from kvikk.shapes.start_logs.check import check_log
    from kvikk.shapes.start_logs.records import Subject
    from kvikk.shapes.start_logs.variants import variants

    sizing = one.sizing
    options = sizing.choices.options
    subject = Subject(
        sizing.shape,
        sizing.choices.dtypes,
        options.tp,
        options.dp_attention,
        variants(one.config, sizing.shape),
    )
    engine, comparisons = check_log(path, subject)
    if as_json:
        lines = [
            {
                "line": comparison.line_number,
                "figure": comparison.figure,
                "printed": comparison.printed,
                "computed": comparison.computed,
                "agrees": comparison.agrees,
                "rule": comparison.rule,
            }
            for comparison in comparisons
        ]
        print(json.dumps({"engine": engine, "lines": lines}))
        return
    agreeing = sum(comparison.agrees for comparison in comparisons)
    print(f"{path.name}: {engine}, {agreeing} of {len(comparisons)} figures as computed\n")
    table = [["line", "figure", "printed", "computed", "", "rule"]]
    before = ""
    for comparison in comparisons:
        table.append(
            [
                f"{comparison.line_number}",
                comparison.figure,
                comparison.printed,
                comparison.computed,
                "=" if comparison.agrees else "differs",
                "the same" if comparison.rule == before else comparison.rule,
            ]
        )
        before = comparison.rule
    print(columns(table, right=(0, 2, 3)))


def write_plot(path: Path, sized: Sequence[Sized]) -> None:
    """Bytes by context, windows bending the line; and conversations, where memory is known."""
    from kvikk.plot import Chart, Series, write_svg

    sizings = [one.sizing for one in sized]
    longest = max(sizing.context_tokens for sizing in sizings)
    contexts = sorted({*(2**power for power in range(8, 41) if 2**power < longest), longest})
    by_bytes = [
        Series(
            sizing.name,
            [(tokens, sizing.cost.bytes_at(tokens) / 2**20) for tokens in contexts],
        )
        for sizing in sizings
    ]
    charts = [
        Chart(
            "One conversation's cache", "context, tokens", "MiB", by_bytes, log_x=True, log_y=True
        )
    ]
    fitting = [
        Series(
            sizing.name,
            [(tokens, max(sizing.conversations(tokens) or 0, 0)) for tokens in contexts],
        )
        for sizing in sizings
        if sizing.device is not None
    ]
    if fitting:
        charts.append(
            Chart("Conversations that fit", "context, tokens", "conversations", fitting, log_x=True)
        )
    write_svg(path, charts)
