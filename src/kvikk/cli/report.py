"""What a terminal is told beside an answer: what was reused, how fast it came, what went wrong."""


def note(line: str) -> None:
    """Print one line about an answer, dimmed on a terminal."""
    _print(line, "dim")


def problem(line: str) -> None:
    """Print one line about what went wrong, red on a terminal."""
    _print(line, "red")


def reuse(prompt_tokens: int, cached_tokens: int) -> str:
    """For example ``reused 96 of 131 prompt tokens (73 %)``."""
    share = round(100 * cached_tokens / prompt_tokens) if prompt_tokens else 0
    return f"reused {cached_tokens:,} of {prompt_tokens:,} prompt tokens ({share} %)"


def speed(completion_tokens: int, tokens_per_s: float | None) -> str:
    """For example ``64 tokens at 240 a second``."""
    rate = "" if tokens_per_s is None else f" at {tokens_per_s:,.0f} a second"
    return f"{completion_tokens:,} tokens{rate}"


def _print(line: str, style: str) -> None:
    """Answers go to standard output, everything about them to standard error."""
    # Drawing takes 30 ms to import, and most verbs say nothing beside their answer.
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True, highlight=False).print(Text(line, style), soft_wrap=True)
