"""What a request on the wire is: which API, whose, and its body; nothing of its headers is kept."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

import orjson

from kvikk.audit.secrets import digest
from kvikk.wire.segments_any import Api

# Endings of paths, the longest first where one ends in another.
_APIS: tuple[tuple[str, Api], ...] = (
    ("/chat/completions", "chat_completions"),
    ("/responses", "responses"),
    ("/messages", "messages"),
    (":rawpredict", "messages"),
    (":streamrawpredict", "messages"),
    ("/invoke", "messages"),
    ("/invoke-with-response-stream", "messages"),
    (":generatecontent", "generate_content"),
    (":streamgeneratecontent", "generate_content"),
    ("/converse", "converse"),
    ("/converse-stream", "converse"),
)
_PROVIDERS = (
    ("api.openai.com", "openai"),
    (".openai.azure.com", "azure"),
    ("api.anthropic.com", "anthropic"),
    ("googleapis.com", "gemini"),
    (".amazonaws.com", "bedrock"),
    ("openrouter.ai", "openrouter"),
    ("api.deepseek.com", "deepseek"),
)
# A path names a model behind one of these.
_MODEL_BEHIND = ("models", "model", "deployments")
_KEYS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
_PART_OF_ACCOUNT = (*_KEYS, "openai-organization", "openai-project")


@dataclass(frozen=True, slots=True)
class Call:
    """A request to a model. ``account`` names the key, and is none."""

    api: Api
    provider: str
    account: str
    body: dict[str, Any]


def read_call(
    method: str, host: str, path: str, headers: Mapping[str, str], content: bytes
) -> Call | None:
    """The call that a request is; None for any other request.

    ``path`` has no query; names in ``headers`` are in lower case, or it does not care.
    """
    path = path.rstrip("/")
    api = next((api for end, api in _APIS if path.lower().endswith(end)), None)
    if method != "POST" or api is None:
        return None
    try:
        body = orjson.loads(_unpacked(content, headers.get("content-encoding", "")))
    except (orjson.JSONDecodeError, zlib.error):
        return None
    if not isinstance(body, dict):
        return None
    if not isinstance(body.get("model", body.get("modelId")), str):
        body = {"model": _model(path), **body}
    provider = next((name for end, name in _PROVIDERS if host.lower().endswith(end)), "")
    return Call(api, provider, account(headers), body)


def account(headers: Mapping[str, str]) -> str:
    """A name for whose key it is; "" without one."""
    if not any(headers.get(name) for name in _KEYS):
        return ""
    return digest("\0".join(headers.get(name, "") for name in _PART_OF_ACCOUNT))


def _model(path: str) -> str:
    """The model that a path names, as of Gemini, Bedrock and Azure."""
    parts = path.split("/")
    for name, value in pairwise(parts):
        if name in _MODEL_BEHIND:
            return unquote(value) if name == "model" else unquote(value).partition(":")[0]
    return ""


def _unpacked(content: bytes, encoding: str) -> bytes:
    packed = encoding.lower() in ("gzip", "deflate")
    return zlib.decompress(content, zlib.MAX_WBITS | 32) if packed else content
