"""The command as a shell sees it: what it costs to ask for help, and how it says no."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("numba", "llvmlite", "numpy", "tokenizers", "jinja2", "fastapi", "uvicorn", "httpx")


def kvikk(
    *arguments: str, text: str | bytes | None = None, encoding: str = "utf-8"
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvikk", *arguments]
    given = text.encode() if isinstance(text, str) else text
    environment = os.environ | {"PYTHONIOENCODING": f"{encoding}:strict"}
    done = subprocess.run(command, capture_output=True, input=given, check=False, env=environment)
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def problem(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of it, behind those that a log is given of a start that takes its time."""
    *before, line = done.stderr.strip().splitlines()
    assert all(re.match(r"\S+: (reading|loading|making) ", one) for one in before), done.stderr
    return line


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from kvikk.cli.main import main\n"
        "sys.argv = ['kvikk', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"
    assert "serve" in done.stdout


@pytest.mark.parametrize("verb", ["serve", "generate", "chat"])
def test_every_verb_explains_itself(verb: str) -> None:
    done = kvikk(verb, "--help")
    assert done.returncode == 0
    assert "--kv-memory" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generate", "no-such-model", "hello"), ("no-such-model", "smollm2")),
        (("generate", "--temperature", "-1", "hello"), ("temperature", "-1")),
        (("chat", "--top-p", "2"), ("top_p", "2")),
        (("generate", "--kv-memory", "3 parsecs", "hello"), ("3 parsecs", "2GiB")),
        (("generate", "--kv-memory", "1KiB", "hello"), ("1.00 KiB", "--kv-memory")),
        (("generate", "--kv-dtype", "int3", "hello"), ("int3", "bf16")),
        (("serve", "--backend", "abacus"), ("abacus", "reference")),
        (("serve", "--port", "99999"), ("99999",)),
        (("serve", "--port", "abc"), ("--port", "--help")),
        (("generate",), ("PROMPT", "--help")),
        (("serv",), ("serve", "--help")),
        (("--nosuch",), ("--nosuch", "--help")),
        (("serve", "--block-size", "33"), ("33", "power of two")),
        (("serve", "--disk-tier", ""), ("disk tier", "PATH")),
        (("serve", "/etc"), ("/etc", "config.json")),
        (("chat", "http://127.0.0.1:9/v1"), ("127.0.0.1:9", "cannot be reached")),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = kvikk(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    line = problem(done)
    assert all(word in line for word in words), line


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    from kvikk.files.sources import resolve

    whole = resolve("smollm2").path.read_bytes()
    for name, content in {
        "truncated.gguf": whole[: len(whole) // 2],
        "text.gguf": b"hello",
        "latin1.gguf": "æøå".encode("latin-1"),
    }.items():
        path = tmp_path / name
        path.write_bytes(content)
        done = kvikk("generate", str(path), "hello")
        assert done.returncode == 2
        assert name in problem(done)


def test_json_is_one_document_and_no_cache_gives_the_same_answer() -> None:
    question = "Name three colours."
    arguments = ("generate", question, "--max-tokens", "12", "--kv-memory", "64MiB", "--json")
    cached, uncached = (
        json.loads(kvikk(*arguments, *more).stdout) for more in ((), ("--no-cache",))
    )
    assert cached["text"] == uncached["text"] != ""
    prompt, answer = cached["prompt_tokens"], cached["completion_tokens"]
    # The last token of an answer is never fed back. Without a cache step i computes all before it.
    assert cached["computed_tokens"] == prompt + answer - 1
    assert uncached["computed_tokens"] == sum(prompt + i for i in range(answer))


def test_standard_input_that_is_no_text_is_one_line_and_status_2() -> None:
    done = kvikk("generate", "-", text="blåbær".encode("latin-1"))
    assert done.returncode == 2
    assert done.stderr == ("kvikk: standard input is not UTF-8 text (byte 2); expected a prompt\n")


def test_a_terminal_without_the_answers_characters_gets_the_others() -> None:
    prompt = " ".join("🦜" * 16)
    arguments = ("generate", prompt, "--raw", "--max-tokens", "6", "--kv-memory", "64MiB")
    whole, plain = (kvikk(*arguments, encoding=name) for name in ("utf-8", "ascii"))
    assert plain.returncode == 0
    assert not whole.stdout.isascii()
    assert plain.stdout == whole.stdout.encode("ascii", "replace").decode()


def test_a_prompt_can_come_from_standard_input() -> None:
    done = kvikk(
        "generate", "-", "--raw", "--max-tokens", "4", "--kv-memory", "64MiB", text="One, two,"
    )
    assert done.returncode == 0
    assert done.stdout.strip()
    assert "reused 0 of 4 prompt tokens" in done.stderr
