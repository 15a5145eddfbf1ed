"""Asking an API of either style one question, and reading what it says of its cache."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from kvikk.errors import ModelError, RequestError

Style = Literal["openai", "anthropic"]

# Enough for an answer of any model, reasoning ones too; what is read is the usage.
ANSWER_TOKENS = 16
_ANTHROPIC_VERSION = "2023-06-01"
_TIMEOUT = httpx.Timeout(600, connect=10)
# Statuses that ask to come again: too many requests, overloaded.
_BUSY = (429, 503, 529)
_FIRST_WAIT_S = 2.0


class Interrupted(Exception):  # noqa: N818 - what was measured stands
    """The run cannot go on now; what it has is good."""


@dataclass(frozen=True)
class Prompt:
    """What is sent: a system text or None, a user text, and fields besides.

    Texts are pieces, and a piece is one block where a style marks blocks.
    """

    user: tuple[str, ...]
    system: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Counts:
    """A prompt's tokens as the API counts them; None where it tells nothing of them."""

    prompt_tokens: int
    read_tokens: int | None
    written_tokens: int | None
    seconds: float

    @property
    def plain_tokens(self) -> int:
        """Neither read nor, as far as told, written."""
        return self.prompt_tokens - (self.read_tokens or 0) - (self.written_tokens or 0)


class Api:
    """One model behind one base URL (with its ``/v1``); without a name the first that it lists.

    ``on_wait`` hears how long a busy API is given, and ``patience_s`` bounds that for one request.
    """

    def __init__(
        self,
        base_url: str,
        model: str = "",
        *,
        style: Style = "openai",
        api_key: str | None = None,
        patience_s: float = 300.0,
        on_wait: Callable[[float, str], None] = lambda seconds, why: None,
    ) -> None:
        self.base_url = base_url
        self.model = model
        self.style: Style = style
        self._patience_s = patience_s
        self._on_wait = on_wait
        self._limit_name = "max_completion_tokens"
        headers = {}
        if style == "anthropic":
            headers["anthropic-version"] = _ANTHROPIC_VERSION
            if api_key is not None:
                headers["x-api-key"] = api_key
        elif api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        try:
            base = httpx.URL(base_url.rstrip("/") + "/")
            if base.scheme not in ("http", "https"):
                raise httpx.InvalidURL("it begins with http:// or https://")
            self._http = httpx.Client(base_url=base, headers=headers, timeout=_TIMEOUT)
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise ModelError(f"{base_url!r} or the key cannot be used: {error}") from None

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine, and so costs nothing."""
        return self._http.base_url.host in ("localhost", "127.0.0.1", "::1")

    def first_model(self) -> str:
        """The id of the first model that the API lists. Raises as ``ask`` does."""
        try:
            response = self._http.get("models")
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        if not response.is_success:
            raise RequestError(
                f"{self.base_url} answered {response.status_code}: {_message(response)}"
            )
        try:
            return str(response.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise ModelError(f"{self.base_url} lists no model; name one with --model") from None

    def ask(self, prompt: Prompt) -> Counts:
        """One answer's counts.

        Raises ModelError if the API cannot be reached, RequestError in its own words if it refuses,
        Interrupted if it stays busy for longer than there is patience.
        """
        waited_s, wait_s = 0.0, _FIRST_WAIT_S
        while True:
            started_s = time.monotonic()
            response = self._post(prompt)
            if response.status_code not in _BUSY:
                return self._counts(response, time.monotonic() - started_s)
            asked_s = _retry_after(response) or wait_s
            if waited_s + asked_s > self._patience_s:
                raise Interrupted(
                    f"{self.base_url} is busy ({response.status_code}: {_message(response)}) and "
                    f"asks for {asked_s:g} s more after {waited_s:g} s of waiting"
                )
            self._on_wait(asked_s, _message(response))
            time.sleep(asked_s)
            waited_s += asked_s
            wait_s *= 2

    def _post(self, prompt: Prompt) -> httpx.Response:
        path = "messages" if self.style == "anthropic" else "chat/completions"
        try:
            response = self._http.post(path, json=self._body(prompt))
            if response.status_code == 400 and self._limit_name in response.text:
                # The older name of the same field, for servers that know no other.
                self._limit_name = "max_tokens"
                response = self._http.post(path, json=self._body(prompt))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        return response

    def _unreachable(self, error: httpx.HTTPError) -> ModelError:
        return ModelError(
            f"{self.base_url} cannot be reached: {str(error) or type(error).__name__}"
        )

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        if self.style == "anthropic":
            body: dict[str, Any] = {"model": self.model, "max_tokens": ANSWER_TOKENS}
            if prompt.system:
                body["system"] = [_marked(piece) for piece in prompt.system]
            content = [_marked(piece) for piece in prompt.user]
            return body | {"messages": [{"role": "user", "content": content}]} | dict(prompt.fields)
        messages = [{"role": "user", "content": "\n\n".join(prompt.user)}]
        if prompt.system:
            messages.insert(0, {"role": "system", "content": "\n\n".join(prompt.system)})
        limit = {self._limit_name: ANSWER_TOKENS}
        return {"model": self.model, "messages": messages} | limit | dict(prompt.fields)

    def _counts(self, response: httpx.Response, seconds: float) -> Counts:
        if not response.is_success:
            raise RequestError(
                f"{self.base_url} answered {response.status_code}: {_message(response)}"
            )
        try:
            usage = response.json()["usage"]
            if not isinstance(usage, dict):
                raise TypeError("usage")
            if self.style == "anthropic":
                return _anthropic_counts(usage, seconds)
            return _openai_counts(usage, seconds)
        except (ValueError, LookupError, TypeError, RecursionError):
            raise RequestError(
                f"{self.base_url} answers without a usage that can be read; is it of the "
                f"{self.style} style, and does the base URL end in /v1?"
            ) from None


def _marked(text: str) -> dict[str, Any]:
    """A block with a breakpoint behind it: without one this style caches nothing."""
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


def _openai_counts(usage: dict[str, Any], seconds: float) -> Counts:
    details = usage.get("prompt_tokens_details") or {}
    read = _count(details, "cached_tokens")
    if read is None:
        read = _count(usage, "prompt_cache_hit_tokens")  # DeepSeek's own name
    written = _count(details, "cache_write_tokens")
    return Counts(_counted(usage, "prompt_tokens"), read, written, seconds)


def _anthropic_counts(usage: dict[str, Any], seconds: float) -> Counts:
    read = _count(usage, "cache_read_input_tokens")
    written = _count(usage, "cache_creation_input_tokens")
    prompt_tokens = _counted(usage, "input_tokens") + (read or 0) + (written or 0)
    return Counts(prompt_tokens, read, written, seconds)


def _count(usage: Any, name: str) -> int | None:
    """A count, None where it is not told. TypeError or ValueError for anything else."""
    if not isinstance(usage, dict):
        raise TypeError(name)
    value = usage.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(name)
    return value


def _counted(usage: Any, name: str) -> int:
    """A count that must be told. Raises LookupError where it is not, and as ``_count`` does."""
    count = _count(usage, name)
    if count is None:
        raise LookupError(name)
    return count


def _retry_after(response: httpx.Response) -> float | None:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None


def _message(response: httpx.Response) -> str:
    """The API's own words on one line."""
    try:
        error = response.json()["error"]
        text = error["message"] if isinstance(error, dict) else error
    except (ValueError, LookupError, TypeError):
        text = response.text or response.reason_phrase
    return " ".join(str(text)[:200].split())
