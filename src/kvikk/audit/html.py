"""An audit as one HTML file: no script, nothing from elsewhere, every text escaped."""

from collections.abc import Iterator
from html import escape
from itertools import islice
from typing import Any, TextIO

from kvikk.audit.findings import is_expected
from kvikk.audit.report import cost_of, money, worst
from kvikk.audit.run import AuditedLog

_MOST_FINDINGS = 500
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --hit: #2a9d5c; --miss: #d1495b; --new: #8a8fa3; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.bar { display: flex; height: 1.2rem; border-radius: 3px; overflow: hidden; margin: .5rem 0; }
.bar i { display: block; } .hit { background: var(--hit); } .miss { background: var(--miss); }
.new { background: var(--new); } h1 { overflow-wrap: anywhere; }
@media (max-width: 40rem) { table { font-size: 12px; } th, td { padding: .3rem .15rem; }
      td { overflow-wrap: anywhere; } }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #8881; padding: .5rem;
      border-radius: 4px; margin: .3rem 0; }
ins { background: #2a9d5c33; text-decoration: none; } del { background: #d1495b33;
      text-decoration: none; }
code { font-size: .9em; overflow-wrap: anywhere; } .mend { font-weight: 600; } .dim { opacity: .7; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_html(audited: AuditedLog, out: TextIO) -> None:
    """Write the page to ``out``."""
    out.writelines(f"{line}\n" for line in _page(audited))


def _page(audited: AuditedLog) -> Iterator[str]:
    totals = audited.totals
    name = escape(audited.name)
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>Cache misses of {name}</title><style>{_STYLE}</style></head><body>"
    yield f"<h1>Cache misses of {name}</h1>"
    yield f"<p>{totals.requests:,} requests, {totals.input_tokens:,} input tokens.</p>"
    yield from _bar(audited)
    if totals.causes:
        yield "<h2>Causes</h2><table><tr><th>cause</th><th class=number>findings</th>"
        yield "<th class=number>missed tokens</th><th class=number>cost</th></tr>"
        for cause, total in totals.by_cost():
            yield (
                f"<tr><td>{escape(cause)}{' <span class=dim>by design</span>' * is_expected(cause)}"
                f"</td><td class=number>{total.findings:,}</td>"
                f"<td class=number>{total.missed_tokens:,}</td>"
                f"<td class=number>{escape(cost_of(total))}</td></tr>"
            )
        yield "</table><h2>The worst</h2>"
        for finding in worst(totals):
            yield from _story(finding.to_json())
    yield from _list(audited)
    yield from _doubts(audited)
    yield "</body></html>"


def _bar(audited: AuditedLog) -> Iterator[str]:
    totals = audited.totals
    if not totals.input_tokens:
        return
    hit = totals.hit_tokens / totals.input_tokens
    miss = totals.missed_tokens / totals.input_tokens
    new = max(0.0, 1 - hit - miss)
    yield "<div class=bar>" + "".join(
        f'<i class="{kind}" style="width:{share:.3%}"></i>'
        for kind, share in (("hit", hit), ("miss", miss), ("new", new))
    )
    yield f"</div><p>{hit:.1%} reused, {miss:.1%} missed, {new:.1%} new.</p>"


def _story(finding: dict[str, Any]) -> Iterator[str]:
    shown = {name: escape(str(value)) for name, value in finding.items() if value is not None}
    yield f"<h3>{shown['cause']}</h3>"
    beside = f", beside request {shown['sibling']}" if "sibling" in shown else ""
    cost = escape(money(finding["cost"], finding["cost_in_input_tokens"]))
    yield (
        f"<p>Request {shown['request']}{beside}: {finding['missed_tokens']:,} tokens at "
        f"<code>{shown['location']}</code>, cost {cost}.</p>"
    )
    if finding["before"] or finding["after"]:
        yield f"<pre><del>{shown['before']}</del></pre><pre><ins>{shown['after']}</ins></pre>"
    if finding["note"]:
        yield f"<p>{shown['note']}</p>"
    yield f"<p class=mend>→ {shown['mend']}</p>"


def _list(audited: AuditedLog) -> Iterator[str]:
    findings = list(islice(audited.totals.findings(), _MOST_FINDINGS))
    if not findings:
        yield "<p>No token was missed that could have been reused.</p>"
        return
    all_of = sum(total.findings for total in audited.totals.causes.values())
    yield f"<h2>Findings</h2><p class=dim>The first {len(findings):,} of {all_of:,}.</p><table>"
    yield "<tr><th class=number>request</th><th>cause</th><th>place</th>"
    yield "<th class=number>tokens</th></tr>"
    for finding in findings:
        yield (
            f"<tr><td class=number>{finding['request']}</td><td>{escape(finding['cause'])}</td>"
            f"<td><code>{escape(finding['location'])}</code></td>"
            f"<td class=number>{finding['missed_tokens']:,}</td></tr>"
        )
    yield "</table>"


def _doubts(audited: AuditedLog) -> Iterator[str]:
    books, counts = audited.totals.reconciliation, audited.counts
    yield "<h2>Beside the providers' counts</h2>"
    yield (
        f"<p>{books.requests:,} requests say what was read: {books.reported_read:,} tokens; by the "
        f"rules it would be {books.ruled_read:,}. Of the log's {counts.lines:,} lines "
        f"{counts.broken:,} are broken and {counts.other:,} no requests.</p>"
    )
