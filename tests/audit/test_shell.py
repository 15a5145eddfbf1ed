"""``kvikk audit`` as a shell and a browser see it."""

import io
import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kvikk.audit.document import write_json
from kvikk.audit.fail_on import failure, parse_limit
from kvikk.audit.html import write_html
from kvikk.audit.report import report
from kvikk.audit.run import audit_log, fixes, with_mends
from kvikk.errors import RequestError
from tests.audit.cases import CASES, load, log_lines
from tests.audit.talk import chat, read, sent, text


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tools in another order, and a clock that is no text for a page."""
    file = tmp_path_factory.mktemp("audit") / "log.jsonl"
    rules = text("rules", 2500)
    clocks = [
        chat(f"<script>alert(1)</script> at 10:4{at}:0{at}. {rules}", ["<b>Hello</b>"])
        for at in (1, 2)
    ]
    lines = [
        *log_lines(load(CASES / "05-mcp-tools-reordered.json")),
        *(read(sent(line, 100 + 20 * at), 2500, 0) for at, line in enumerate(clocks)),
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def kvikk(*words: str) -> subprocess.CompletedProcess[str]:
    """The program, run."""
    command = [sys.executable, "-m", "kvikk", "audit", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_broken_limit_is_told_and_ends_with_1(log: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = kvikk(str(log), "--fail-on", "tools", "--html", str(page), "--fix")
    assert done.returncode == 1
    assert "tools: 1 found" in done.stderr
    assert "tools.order" in done.stdout
    assert '"name": "shell"' in done.stdout
    assert page.exists()


def test_bad_words_end_with_2_and_one_line(log: Path) -> None:
    done = kvikk(str(log), "--fail-on", "nonsense")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


def test_limits_are_kept_or_not(log: Path) -> None:
    totals = audit_log([log]).totals
    assert failure(parse_limit("hit_rate<50%"), totals) is not None
    assert failure(parse_limit("hit-rate<0"), totals) is None
    assert failure(parse_limit("missed_tokens>100000"), totals) is None
    assert failure(parse_limit("missed_tokens>100"), totals) is not None
    assert failure(parse_limit("cost>1"), totals) is not None  # for want of a price
    assert failure(parse_limit("volatile_value.timestamp"), totals) is not None
    assert failure(parse_limit("history.*"), totals) is None
    for wrong in ("hit_rate", "cost>x.y", "tool", "missed_tokens>1.2.3"):
        with pytest.raises(RequestError, match="--fail-on"):
            parse_limit(wrong)


def test_a_report_tells_the_worst_with_before_and_after(log: Path) -> None:
    told = "\n".join(report(with_mends(audit_log([log]))))
    assert "mcp_docs_search" in told
    assert "10:42:02" in told
    assert "→ sort the tools by name before each call" in told
    assert "read" in told


def test_the_worst_requests_are_printed_rewritten(log: Path) -> None:
    fixed = {one["cause"]: one["body"] for one in fixes(audit_log([log]))}
    assert "10:42:02" not in fixed["volatile_value.timestamp"]["messages"][0]["content"]
    assert "10:42:02" in fixed["volatile_value.timestamp"]["messages"][1]["content"]
    names = [tool["name"] for tool in fixed["tools.order"]["tools"]]
    assert names == sorted(names)


class _Page(HTMLParser):
    """What a browser would run or fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]


def test_a_page_runs_nothing_and_fetches_nothing(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    with file.open("w") as out:
        write_html(audit_log([log]), out)
    page = _Page()
    page.feed(file.read_text())
    assert not {"script", "b", "link", "img"} & set(page.tags)
    assert page.addresses == []
    assert "default-src" in file.read_text()


def test_two_logs_are_compared(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("".join(log.read_text().splitlines(keepends=True)[:2]))
    document = json.loads(kvikk(str(other), str(log), "--json").stdout)
    assert [one["cause"] for one in document["findings"]] == ["volatile_value.timestamp"]
    assert document["totals"]["tools.order"]["difference"] == 0
    together = json.loads(kvikk(str(other), str(log), "--together", "--json", "--no-mends").stdout)
    assert together["requests"] == 6


def test_no_secret_of_a_log_is_shown(tmp_path: Path) -> None:
    secrets = [("sk-proj-ABCDEFGHIJKLMNOPQRSTUV", "hunter2hunter2")]
    secrets += [("sk-ant-ZYXWVUTSRQPON", "xyzzy")]
    lines = []
    for at, (key, password) in enumerate([*secrets, (secrets[0][0], "plugh-99")]):
        head = f"Use {key}, password: {password}, Bearer {at}abcdefgh123. "
        line = chat(head + text("rules", 2500), ["Hello"])
        line = read(sent(line, 100 + 20 * at), 2600, 0)
        lines.append({**line, "id": key, "headers": {"Authorization": f"Bearer {key}"}})
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    audited = with_mends(audit_log([log], accounts=True))
    assert audited.totals.missed_tokens > 4000
    page, document = io.StringIO(), io.StringIO()
    write_html(audited, page)
    write_json(audited, document, accounts=True, fixed=True)
    shown = "\n".join(report(audited)) + page.getvalue() + document.getvalue()
    for secret in ("ABCDEFGH", "MNOPQ", "ZYXWV", "hunter2", "xyzzy", "plugh", "abcdefgh123"):
        assert secret not in shown
