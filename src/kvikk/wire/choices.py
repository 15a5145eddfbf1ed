"""How many answers, and what is told of their tokens, in Chat Completions and Completions."""

from dataclasses import dataclass
from typing import Any

from kvikk.wire.reading import JsonValue

MAX_CHOICES = 128
MAX_LOGPROBS = 20  # the API's own


@dataclass(frozen=True)
class ChoiceFields:
    """``count`` answers; of ``best_of``, where that is more, the likeliest.

    ``logprobs`` asks for each token's log-probability and so many of the likeliest (None: for
    none), ``prompt_logprobs`` for the same of the prompt's tokens. With ``echo`` an answer begins
    with its prompt.
    """

    count: int = 1
    best_of: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False

    @classmethod
    def of_chat(cls, body: JsonValue) -> "ChoiceFields":
        """Read them as Chat Completions has them: ``logprobs`` a boolean, beside the number."""
        wanted, number = body.get("logprobs").boolean(False), body.get("top_logprobs")
        top = 0 if number.is_null else number.integer(0, MAX_LOGPROBS)
        if top and not wanted:
            number.fail("goes with logprobs; set logprobs to true or leave it out")
        return cls(
            _count(body.get("n"), 1),
            logprobs=top if wanted else None,
            prompt_logprobs=_prompt_logprobs(body),
        )

    @classmethod
    def of_completion(cls, body: JsonValue) -> "ChoiceFields":
        """Read them as Completions has them: ``logprobs`` a number."""
        count, number = _count(body.get("n"), 1), body.get("logprobs")
        best_of = _count(body.get("best_of"), count)
        if best_of < count:
            body.get("best_of").fail(f"must be at least n, which is {count}")
        if best_of > count and body.get("stream").boolean(False):
            body.get("best_of").fail("the best is known at the end only; leave stream out")
        return cls(
            count,
            best_of if best_of > count else None,
            None if number.is_null or number.value is False else number.integer(0, MAX_LOGPROBS),
            _prompt_logprobs(body),
            body.get("echo").boolean(False),
        )

    @property
    def tells_nothing(self) -> bool:
        """Whether nobody is told of tokens."""
        return self.logprobs is None and self.prompt_logprobs is None

    @property
    def num_made(self) -> int:
        """How many answers are made, some of which may not be sent."""
        return self.best_of or self.count

    def to_json(self, *, chat: bool) -> dict[str, Any]:
        """The fields of a body, those at their defaults left out."""
        fields: dict[str, Any] = {} if self.count == 1 else {"n": self.count}
        if self.logprobs is not None and chat:
            fields |= {"logprobs": True, "top_logprobs": self.logprobs}
        elif self.logprobs is not None:
            fields["logprobs"] = self.logprobs
        named = {"best_of": self.best_of, "prompt_logprobs": self.prompt_logprobs}
        fields |= {name: value for name, value in named.items() if value is not None}
        return fields | ({"echo": True} if self.echo else {})


def _count(value: JsonValue, default: int) -> int:
    return default if value.is_null else value.integer(1, MAX_CHOICES)


def _prompt_logprobs(body: JsonValue) -> int | None:
    value = body.get("prompt_logprobs")
    if value.is_null:
        return None
    if body.get("stream").boolean(False):
        value.fail("come with a whole answer; leave stream out")
    return value.integer(0, MAX_LOGPROBS)
