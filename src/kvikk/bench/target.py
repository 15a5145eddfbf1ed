"""The server under load: what it is, which fields it takes, and how long a text is to it."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kvikk.bench.answers import AnswerReader, Counts, Result, read_counts
from kvikk.bench.http_client import HttpClient, Response, TransferError
from kvikk.errors import ModelError, RequestError
from kvikk.text.words import text_of

Api = Literal["chat", "completions"]
Messages = Sequence[Mapping[str, str]]

_PATHS: Mapping[Api, str] = {"chat": "chat/completions", "completions": "completions"}
# Beyond the API, but told by name to most engines: go on when the model would end. Some refuse it,
# or the wish for usage in a stream; then a measurement goes without.
_WISHES: Mapping[str, Any] = {
    "ignore_eos": True,
    "stream_options": {"include_usage": True},
}
_PROBE_WORDS = (16, 272)


@dataclass(frozen=True)
class Lengths:
    """What a text of n words is to the server: ``fixed_tokens + n * tokens_per_word`` tokens.

    ``fixed_tokens`` is what it puts around one message: a template, a beginning of sequence.
    """

    fixed_tokens: float = 0.0
    tokens_per_word: float = 1.0
    is_measured: bool = False

    def words(self, num_tokens: int) -> int:
        """How many words are ``num_tokens`` tokens by themselves; at least one."""
        return max(1, round(num_tokens / self.tokens_per_word))


@dataclass(frozen=True)
class Target:
    """A server that answered: ``fields`` are those of our wishes that it takes."""

    http: HttpClient
    base_url: str
    api: Api
    model: str
    software: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    lengths: Lengths = field(default_factory=Lengths)

    @property
    def ignores_eos(self) -> bool:
        """Whether answers have the wanted length whatever the model says."""
        return "ignore_eos" in self.fields

    async def ask(
        self,
        prompt: str | Messages,
        max_tokens: int,
        *,
        began_s: float = 0.0,
        due_s: float = 0.0,
        session: int = 0,
        turn: int = 0,
    ) -> tuple[Result, str]:
        """One streamed request: how it went, and the answer's text. A failure is a result too.

        ``began_s`` is the run's beginning on the monotonic clock.
        """
        body = json.dumps(
            {
                "model": self.model,
                **self._prompt(prompt),
                "max_tokens": max_tokens,
                "temperature": 0,
                "stream": True,
                **self.fields,
            }
        ).encode()
        reader = AnswerReader()
        sent_s = time.monotonic()
        error = message = None
        try:
            response = await self.http.stream(_PATHS[self.api], body, reader.feed)
            if not response.is_success:
                error, message = f"HTTP {response.status}", _message(response)
            elif reader.error is not None:
                error, message = "error in the stream", reader.error
            elif reader.first_token_s is None:
                error, message = "no token", "the answer was empty"
            elif not reader.is_done and reader.finish_reason is None:
                error, message = "cut off", "the stream ended without a last event"
        except TransferError as failure:
            error, message = failure.kind, str(failure)
        result = Result(
            session,
            turn,
            max_tokens,
            due_s,
            sent_s - began_s,
            None if reader.first_token_s is None else reader.first_token_s - began_s,
            None if reader.last_token_s is None else reader.last_token_s - began_s,
            reader.num_events,
            reader.longest_gap_s,
            reader.counts,
            reader.finish_reason,
            error,
            message,
        )
        return result, reader.text

    async def count(self, prompt: str | Messages) -> Counts | None:
        """What the server says of a prompt, from an answer of one token that is not streamed."""
        fields = {name: value for name, value in self.fields.items() if name != "stream_options"}
        body = {
            "model": self.model,
            **self._prompt(prompt),
            "max_tokens": 1,
            "temperature": 0,
            **fields,
        }
        response = await _fetch(self, "POST", _PATHS[self.api], body)
        if not response.is_success:
            raise RequestError(f"{self.base_url} answered {response.status}: {_message(response)}")
        try:
            return read_counts(json.loads(response.body))
        except (ValueError, AttributeError):
            return None

    def _prompt(self, prompt: str | Messages) -> dict[str, Any]:
        """A text is one user's message; a conversation without a template is its lines."""
        if self.api == "chat":
            is_text = isinstance(prompt, str)
            return {"messages": [{"role": "user", "content": prompt}] if is_text else prompt}
        if isinstance(prompt, str):
            return {"prompt": prompt}
        return {"prompt": "\n".join(message["content"] for message in prompt)}


async def reach(
    base_url: str, *, api: Api, model: str | None, api_key: str | None, seed: int
) -> Target:
    """Find out what a measurement must know of a server, by a handful of short requests.

    Raises ModelError if it cannot be reached or serves no model, RequestError, in the server's own
    words, if it refuses even the plainest request.
    """
    http = HttpClient(base_url, api_key)
    target = Target(http, base_url, api, model or "", "")
    listed = await _fetch(target, "GET", "models")
    if model is None and not listed.is_success:
        raise ModelError(
            f"{base_url} lists no models (status {listed.status}); is the /v1 missing? "
            "Otherwise name one with --model"
        )
    software = await _software(target, listed)
    target = Target(http, base_url, api, model or _first_model(base_url, listed), software)
    target = await _accepted(target, seed)
    return await _measured(target, seed)


async def _accepted(target: Target, seed: int) -> Target:
    """The target with the most of our wishes that it does not refuse."""
    choices = (("ignore_eos", "stream_options"), ("stream_options",), ("ignore_eos",), ())
    for names in choices:
        target = replace(target, fields={name: _WISHES[name] for name in names})
        result, _ = await target.ask(text_of(_PROBE_WORDS[0], seed, "probe"), 2)
        if result.error is None:
            return target
        if result.error not in ("HTTP 400", "HTTP 422"):
            break
    raise RequestError(
        f"{target.base_url} refuses a short request: {result.error}: {result.message}"
    )


async def _measured(target: Target, seed: int) -> Target:
    """The target with what two texts of known words were in its tokens."""
    tokens = []
    for num_words in _PROBE_WORDS:
        counts = await target.count(text_of(num_words, seed, "probe", num_words))
        if counts is None:
            return target
        tokens.append(counts.prompt_tokens)
    (few_words, many_words), (few, many) = _PROBE_WORDS, tokens
    per_word = (many - few) / (many_words - few_words)
    if per_word <= 0:
        return target
    return replace(target, lengths=Lengths(few - few_words * per_word, per_word, True))


async def _fetch(target: Target, method: str, path: str, body: Any = None) -> Response:
    try:
        content = None if body is None else json.dumps(body).encode()
        return await target.http.fetch(method, path, content)
    except TransferError as error:
        hint = "; is a server running there?" if error.kind == "no connection" else ""
        raise ModelError(f"{target.base_url} cannot be reached: {error}{hint}") from None


def _first_model(base_url: str, listed: Response) -> str:
    try:
        return str(json.loads(listed.body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise ModelError(f"{base_url} serves no model; name one with --model") from None


async def _software(target: Target, listed: Response) -> str:
    """Name and version, as far as the server tells them; each engine has its own way."""
    version, properties = await asyncio.gather(
        fetch_object(target, "/version"), fetch_object(target, "/props")
    )
    if "build_info" in properties:
        return f"llama.cpp {properties['build_info']}"
    try:
        owner = json.loads(listed.body)["data"][0]["owned_by"]
    except (ValueError, LookupError, TypeError):
        owner = None
    told = [owner, version.get("version")] if owner or version else [listed.headers.get("server")]
    return " ".join(str(part) for part in told if part) or "unknown"


async def fetch_object(target: Target, path: str) -> dict[str, Any]:
    """The JSON object at a path; empty where there is none. Raises ModelError if out of reach."""
    response = await _fetch(target, "GET", path)
    try:
        value = json.loads(response.body) if response.is_success else None
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


def _message(response: Response) -> str:
    """The server's own words on one line."""
    try:
        error = json.loads(response.body)
        error = error.get("error", error.get("detail", error))
        text = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        text = response.body.decode("utf-8", "replace")
    return " ".join(str(text).split())[:200]
