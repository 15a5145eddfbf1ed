"""Speaking to somebody's server: plain answers, and Chat Completions, streamed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from kvikk.errors import ModelError, RequestError
from kvikk.wire.reading import JsonValue, parse_json
from kvikk.wire.usage import Usage

# A cold prompt of many thousand tokens on a CPU: the first byte may take minutes.
_TIMEOUT = httpx.Timeout(600, connect=10)


class ApiClient:
    """One server, by its base URL, and the key that opens it."""

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        try:
            # The trailing slash keeps /v1 when paths are joined to it.
            base = httpx.URL(base_url.rstrip("/") + "/")
            self._http = httpx.Client(base_url=base, headers=headers, timeout=_TIMEOUT)
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise ModelError(f"{base_url!r} or the key cannot be used: {error}") from None
        self._base_url = base_url

    def get(self, path: str, **query: str | int) -> JsonValue:
        """What the server says at ``path``, which is relative to the base URL.

        Raises RequestError with the server's own words, ModelError if it cannot be reached.
        """
        try:
            response = self._http.get(path, params=query)
            self._check(response)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        return parse_json(response.content)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> JsonValue:
        """What the server says to a request with this body, if there is one. Raises as ``get``."""
        try:
            response = self._http.request(method, path, json=body)
            self._check(response)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        return parse_json(response.content)

    def events(self, path: str) -> Iterator[JsonValue]:
        """What the server tells at ``path`` as server-sent events, until it ends them.

        Raises as ``get`` does.
        """
        try:
            with self._http.stream("GET", path) as response:
                self._check(response)
                yield from _events(response)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        response.read()
        try:
            message = parse_json(response.content).get("error").get("message").string()
        except RequestError:
            message = " ".join(response.text[:200].split()) or response.reason_phrase
        raise RequestError(f"{self._base_url} answered {response.status_code}: {message}")

    def _unreachable(self, error: httpx.HTTPError) -> ModelError:
        return ModelError(f"{self._base_url} cannot be reached: {error or type(error).__name__}")


@dataclass(frozen=True)
class ChatPiece:
    """What one event of a streamed answer brought: text, or at the end the usage."""

    text: str = ""
    usage: Usage | None = None


class ChatClient(ApiClient):
    """One server of the OpenAI kind, by its base URL (with ``/v1``), and one model of it."""

    def __init__(self, base_url: str, api_key: str | None = None, model: str | None = None) -> None:
        super().__init__(base_url, api_key)
        self.model = model or self._first_model()

    def stream(self, messages: Sequence[Mapping[str, str]], **fields: Any) -> Iterator[ChatPiece]:
        """The answer to a conversation, piece by piece; ``fields`` go into the body as they are.

        Raises RequestError with the server's own words, ModelError if it cannot be reached.
        """
        body = {
            "model": self.model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        try:
            with self._http.stream("POST", "chat/completions", json=body) as response:
                self._check(response)
                yield from map(_read_chunk, _events(response))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _first_model(self) -> str:
        listed = list(self.get("models").get("data").items())
        if not listed:
            raise ModelError(f"{self._base_url} serves no model")
        return listed[0].get("id").string()


def _events(response: httpx.Response) -> Iterator[JsonValue]:
    for line in response.iter_lines():
        if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
            yield parse_json(data.encode())


def _read_chunk(chunk: JsonValue) -> ChatPiece:
    if not chunk.get("error").is_null:  # how a server ends a stream that it cannot finish
        raise RequestError(chunk.get("error").get("message").string())
    usage = chunk.get("usage")
    choices = chunk.get("choices")
    texts = [
        content.string()
        for choice in ([] if choices.is_null else choices.items())
        if not (content := choice.get("delta").get("content")).is_null
    ]
    return ChatPiece("".join(texts), None if usage.is_null else Usage.from_json(usage))
