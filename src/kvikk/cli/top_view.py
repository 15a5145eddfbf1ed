"""How ``kvikk top`` draws a server: characters tell things apart as well as colours do."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from kvikk.cli.why import bar, mark
from kvikk.wire.live import STATES, LiveRequest, LiveView

_BLOCKS = {
    "shared": ("█", "bright_yellow"),
    "live": ("▓", "bright_cyan"),
    "cached": ("░", "cyan"),
    "empty": ("·", "bright_black"),
}
_MOST_BAR_LINES = 6
_ID_WIDTH = 18
_FIGURES_WIDTH = 22
_ONCE_REQUESTS = 12


def screen(
    model: str, url: str, view: LiveView, ledger: Mapping[str, Any], width: int, height: int | None
) -> Text:
    """Everything, ``width`` columns wide and at most ``height`` lines, if there is a limit."""
    lines = [_head(model, url, view, width), Text()]
    lines += _pools(view, width)
    lines += [_rates(ledger, width), Text()]
    lines += [*_causes(ledger, width), Text()]
    lines.append(Text("requests, newest first", "bold"))
    room = _ONCE_REQUESTS if height is None else max(0, height - len(lines) - 1)
    requests = list(view.requests.values())[::-1][:room]
    longest = max((request.prompt_tokens for request in requests), default=1)
    lines += [_request(request, longest, width) for request in requests]
    if not requests:
        lines.append(Text("none yet", "dim"))
    for line in lines:
        line.truncate(width)
    return Text("\n").join(lines[:height])


def _head(model: str, url: str, view: LiveView, width: int) -> Text:
    head = Text()
    head.append("kvikk ", "bold").append(f"{model}  ").append(url, "dim")
    clock = time.strftime("%H:%M:%S", time.localtime(view.at_s))
    return head.append(clock.rjust(max(1, width - len(head))), "dim")


def _pools(view: LiveView, width: int) -> list[Text]:
    """The figures, and each group's blocks as cells; a cell shows its busiest block."""
    engine = view.engine
    if engine is None:
        return [
            Text("the pool is all tenants'; its map is the operator's", "dim"),
            Text(),
        ]
    figures = Text()
    figures.append(f"{view.tokens_per_s:,.0f}", "bold").append(" tokens/s   ")
    figures.append(f"{engine.running_requests}", "bold").append(" running   ")
    figures.append(f"{engine.waiting_requests}", "bold").append(" queued   ")
    figures.append(f"{engine.preemptions}", "bold").append(" preemptions")
    lines = [figures, Text()]
    for states in view.groups:
        per_cell = -(-len(states) // (width * _MOST_BAR_LINES))
        cells = [max(states[first : first + per_cell]) for first in range(0, len(states), per_cell)]
        for first in range(0, len(cells), width):
            line = Text()
            for state in cells[first : first + width]:
                line.append(*_BLOCKS[STATES[state]])
            lines.append(line)
    legend = Text()
    for name, count in reversed(view.blocks.items()):
        legend.append(*_BLOCKS[name]).append(f" {count:,} {name}   ")
    legend.append(f"of {engine.block_size} tokens", "dim")
    return [*lines, legend, Text()]


def _rates(ledger: Mapping[str, Any], width: int) -> Text:
    rates = ledger["rates"]
    if not ledger["prompt_tokens"]:
        return Text("no requests in the last hour", "dim")
    achieved = rates["achieved"]
    operator, author = rates["attainable_by_operator"], rates["attainable_by_author"]
    cells = max(10, width // 3)
    ends = [round(share * cells) for share in (achieved, operator, author)]
    line = Text("reused ")
    line.append(f"{achieved:.0%} ", "bold").append("█" * ends[0], "green")
    line.append("▒" * (ends[1] - ends[0]), "red").append("░" * (ends[2] - ends[1]), "yellow")
    line.append("·" * (cells - ends[2]), "bright_black")
    line.append(f" attainable: operator {operator:.0%}, author {author:.0%}")
    return line


def _causes(ledger: Mapping[str, Any], width: int) -> list[Text]:
    by_cause: Mapping[str, int] = ledger["by_cause"]
    most = max(by_cause.values(), default=1)
    lines = []
    for cause, tokens in by_cause.items():
        character, style = mark(cause)
        line = Text(f"{cause:<11}{tokens:>11,}  ")
        line.append(character * max(1, round(tokens / most * max(4, width - 30))), style)
        lines.append(line)
    return lines


def _request(request: LiveRequest, longest: int, width: int) -> Text:
    state = {"running": "▶", "waiting": "…"}.get(request.state, " ")
    line = Text(f"{state} ")
    line.append(f"{request.id[: _ID_WIDTH - 1]:<{_ID_WIDTH}}", "dim")
    figures = f"{request.cached_tokens:,}/{request.prompt_tokens:,}"
    if request.generated_tokens:
        figures += f" +{request.generated_tokens:,}"
    line.append(f"{figures:<{_FIGURES_WIDTH}}")
    room = max(8, width - len(line))
    line.append_text(_prompt(request.spans, request.prompt_tokens, longest, room))
    return line


def _prompt(spans: Sequence[Any], tokens: int, longest: int, room: int) -> Text:
    return bar(spans, tokens, max(1, round(tokens / longest * room)))
