"""LiteLLM's logs: the standard payload that its callbacks write, and rows of its spend table.

The body is the proxy's own copy where it was stored, else put together from messages and
parameters. A key's hash says who asked LiteLLM; the deployment says which account answered.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kvikk.audit.readers.found import Found, number, text

_RESPONSES_CALLS = ("responses", "aresponses")
_MESSAGES_CALLS = ("anthropic_messages", "pass_through_endpoint")
# What LiteLLM adds to a call's parameters and no provider sees.
_OWN = ("metadata", "litellm_params", "proxy_server_request", "api_key", "headers", "extra_headers")
_PROVIDERS = {"vertex_ai": "gemini", "bedrock_converse": "bedrock", "hosted_vllm": "self_hosted"}


def read_litellm(record: dict[str, Any]) -> list[Found] | None:
    """One exchange of a record of LiteLLM; None for any other."""
    if "call_type" not in record or "startTime" not in record:
        return None
    body = _body(record)
    if body is None:
        return []
    kind = text(record, "call_type")
    api = "responses" if kind in _RESPONSES_CALLS else ""
    api = "messages" if kind in _MESSAGES_CALLS and "messages" in body else api
    provider = text(record, "custom_llm_provider")
    answer = _opened(record.get("response"))
    metadata = _mapping(_opened(record.get("metadata")))
    usage = _mapping(answer).get("usage") or metadata.get("usage_object")
    return [
        Found(
            body,
            api=api,
            provider=_PROVIDERS.get(provider, provider),
            response=answer,
            usage=usage or _counts(record),
            known={
                "id": text(record, "id") or text(record, "request_id"),
                "at_s": _time_s(record.get("startTime")),
                "first_byte_s": _time_s(record.get("completionStartTime")),
                "account": text(record, "model_id"),
                "host": text(record, "api_base"),
                "status": _status(record),
            },
        )
    ]


def _body(record: Mapping[str, Any]) -> dict[str, Any] | None:
    stored = _mapping(_opened(record.get("proxy_server_request")))
    stored = _mapping(_opened(stored.get("body"))) or stored
    parameters = _mapping(_opened(record.get("model_parameters")))
    messages = _opened(record.get("messages"))
    given: dict[str, Any]
    if stored.get("messages") or stored.get("input") or stored.get("contents"):
        given = dict(stored)
    elif isinstance(messages, list):
        given = {**parameters, "messages": messages}
    elif isinstance(messages, str) and messages and not messages.startswith("redacted"):
        given = {**parameters, "input": messages}
    else:
        return None
    if text(record, "call_type") in _RESPONSES_CALLS and "input" not in given:
        given["input"] = given.pop("messages")
    model = text(record, "model")
    return {"model": model, **{key: one for key, one in given.items() if key not in _OWN}}


def _counts(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Sums without any word on the cache, which a record has where the answer was not stored."""
    if number(record, "prompt_tokens") is None:
        return None
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {name: record.get(name) for name in names}


def _status(record: Mapping[str, Any]) -> int | None:
    error = _mapping(record.get("error_information"))
    code = str(error.get("error_code") or "")
    if code.isdigit():
        return int(code)
    return {"success": 200, "failure": 500}.get(text(record, "status"))


def _time_s(value: object) -> float | None:
    """Seconds since 1970 of a number or of an ISO date, which is in UTC if it says nothing."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and value:
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None


def _opened(value: object) -> object:
    """A column of JSON may be stored as text."""
    if isinstance(value, str) and value[:1] in "{[":
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
