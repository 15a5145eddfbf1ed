"""One request that an application really sent, with what is known of how it went."""

from dataclasses import dataclass
from typing import Any

from kvikk.audit.usage import Contradiction, ReportedUsage, no_usage, read_usage
from kvikk.wire.segments_any import APIS, Api, guess_api

_APIS_BY_NAME: dict[str, Api] = {name.replace("_", ""): name for name in APIS} | {
    "chat": "chat_completions",
    "chatcompletion": "chat_completions",
    "anthropicmessages": "messages",
    "gemini": "generate_content",
    "bedrock": "converse",
}
_PROVIDERS = (
    "openai",
    "anthropic",
    "gemini",
    "deepseek",
    "bedrock",
    "azure",
    "openrouter",
    "self_hosted",
    "other",
)
_PROVIDER_OF_API = {"generate_content": "gemini", "converse": "bedrock"}
_PROVIDER_OF_MODEL = (
    ("claude", "anthropic"),
    ("gpt-", "openai"),
    ("chatgpt", "openai"),
    ("o1", "openai"),
    ("o3", "openai"),
    ("o4", "openai"),
    ("codex", "openai"),
    ("gemini", "gemini"),
    ("deepseek", "deepseek"),
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request's body and, where known, its time, its account, its answer.

    ``body`` is what the application sent, ``upstream`` what a gateway made of it, None where
    nothing stood between. Times in seconds on one clock; ``first_byte_s`` is when the response
    began. ``host`` is who answered behind one endpoint. No header is ever kept.
    """

    index: int
    api: Api
    provider: str
    body: dict[str, Any]
    id: str = ""
    at_s: float | None = None
    first_byte_s: float | None = None
    account: str = ""
    host: str = ""
    status: int | None = None
    response: dict[str, Any] | None = None
    upstream: dict[str, Any] | None = None
    usage: ReportedUsage = no_usage

    @property
    def failed(self) -> bool:
        """Whether the provider refused it: nothing was read or written then."""
        return self.status is not None and self.status >= 400

    @property
    def seen(self) -> dict[str, Any]:
        """The body as the provider saw it."""
        return self.upstream if self.upstream is not None else self.body

    @property
    def seen_api(self) -> Api:
        """The API of that body: a gateway may translate from one into another."""
        if self.upstream is None:
            return self.api
        return guess_api(self.upstream) or self.api

    @property
    def model(self) -> str:
        """The model that was asked for, or that the answer names where the request has none."""
        for holder in (self.seen, self.body, self.response or {}):
            model = holder.get("model", holder.get("modelId"))
            if isinstance(model, str) and model:
                return model
        return ""


def make_exchange(
    index: int,
    body: dict[str, Any],
    *,
    api: str = "",
    provider: str = "",
    response: object = None,
    upstream: object = None,
    usage: object = None,
    **known: Any,
) -> Exchange | None:
    """An exchange from what a reader found; None if ``body`` is no request of a known API.

    ``api`` and ``provider`` may be left out or be of any spelling. ``known`` are further fields.
    """
    found_api = _api(api) or guess_api(body)
    if found_api is None:
        return None
    answer = response if isinstance(response, dict) else None
    counted = usage if isinstance(usage, dict) else _usage_of(answer)
    found_provider = _provider(provider) or _guess_provider(found_api, body)
    host = str(known.pop("host", None) or (answer or {}).get("provider") or "")
    return Exchange(
        index=index,
        api=found_api,
        provider=found_provider,
        body=body,
        response=answer,
        upstream=upstream if isinstance(upstream, dict) else None,
        usage=_counted(counted, found_provider, body),
        host=host,
        **known,
    )


def _counted(usage: dict[str, Any] | None, provider: str, body: dict[str, Any]) -> ReportedUsage:
    """The counts; none where they are all zero for a request that says something."""
    if not usage:
        return no_usage
    found = read_usage(usage, provider)
    if found.input_tokens != 0 or not any(body.get(name) for name in ("messages", "input")):
        return found
    name = "prompt_tokens" if "prompt_tokens" in usage else "input_tokens"
    reason = "says 0 for a prompt that is not empty: it was not counted, which is not zero"
    return ReportedUsage(contradictions=(Contradiction(f"$.usage.{name}", reason),))


def _usage_of(answer: dict[str, Any] | None) -> dict[str, Any] | None:
    for name in ("usage", "usageMetadata", "usage_metadata"):
        if answer is not None and isinstance(answer.get(name), dict):
            found: dict[str, Any] = answer[name]
            return found
    return None


def _api(name: str) -> Api | None:
    plain = "".join(filter(str.isalpha, name.partition("(")[0].lower()))
    return _APIS_BY_NAME.get(plain)


def _provider(name: str) -> str:
    """The provider that a log names: one of ours, in whatever words."""
    words = name.lower().replace("-", "_").strip()
    if words in _PROVIDERS:
        return words
    if any(word in words for word in ("self_hosted", "vllm", "llama.cpp", "ollama", "compatible")):
        return "self_hosted"
    if any(word in words for word in ("aggregator", "openrouter")):
        return "openrouter"
    if "bedrock" in words:
        return "bedrock"
    if any(word in words for word in ("vertex", "google", "gemini")):
        return "gemini"
    return next((one for one in _PROVIDERS if words.startswith(one)), "other" if words else "")


def _guess_provider(api: Api, body: dict[str, Any]) -> str:
    model = str(body.get("model") or "").rpartition("/")[2].lower()
    named = next((who for start, who in _PROVIDER_OF_MODEL if model.startswith(start)), "")
    return _PROVIDER_OF_API.get(api) or named or "other"
