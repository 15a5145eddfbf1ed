"""From a body to block keys: tokens where the model's tokeniser is at hand, else bytes of content.

Keys come from what was parsed, piece by piece in the order in which a template renders them, never
from the body as text: a name in a message is no parameter, and two ways to write the same JSON are
the same prompt.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, cast

import xxhash

from kvikk.cache.keys import KeyChain, root_key
from kvikk.errors import KvikkError
from kvikk.router.holdings.keys import NONE, Keys, joined
from kvikk.router.placement.chunk_keys import CHUNK_BYTES, CHUNK_KEY_BYTES, chunk_keys
from kvikk.router.placement.content import Content, read_content
from kvikk.router.proxy.placement import Asked
from kvikk.text.chat import ChatTemplate
from kvikk.text.tokenizer import Tokenizer
from kvikk.wire.kv_events import published_salt
from kvikk.wire.segments_any import Api

# A guess until usage has said how many tokens a model makes of a text.
BYTES_PER_TOKEN = 4.0
CHUNK_TOKENS = round(CHUNK_BYTES / BYTES_PER_TOKEN)
DEFAULT_BLOCK_TOKENS = 32
# Two prompts that begin with as many tokens are taken for one family by policies that hash.
_FAMILY_TOKENS = 1024

_APIS: Mapping[str, Api] = {
    "/chat/completions": "chat_completions",
    "/messages": "messages",
    "/responses": "responses",
}


class View:
    """A prompt's keys as some replicas' blocks are named."""

    __slots__ = ("block_tokens", "keys")

    def __init__(self, block_tokens: int, keys: Sequence[bytes]) -> None:
        self.block_tokens: Final = block_tokens
        self.keys: Final = keys


class Prompt:
    """A prompt: ``told`` as replicas name blocks that tell, ``keys`` as the router does itself.

    ``block_tokens`` is what a key stands for, 0 for chunks of content; ``blocks`` are the keys one
    by one, where replicas tell. ``size`` is its length: tokens where it was tokenised, else bytes
    of content. ``session`` is a digest of what it belongs to, by the caller's word
    (``session_name``) or by its beginning, and ``key`` is the same where the word is one that keeps
    requests together wherever they begin; ``prefix`` stands for how it begins, the same for all
    turns of a conversation.
    """

    __slots__ = (
        *("block_tokens", "blocks", "key", "keys", "prefix", "session", "session_name"),
        *("size", "told"),
    )

    def __init__(
        self,
        keys: Keys,
        block_tokens: int,
        told: tuple[View, ...] = (),
        blocks: Sequence[bytes] = (),
        size: int = 0,
        session: bytes = b"",
        session_name: str = "",
        prefix: bytes = b"",
        key: bytes = b"",
    ) -> None:
        self.keys: Final = keys
        self.block_tokens: Final = block_tokens
        self.told: Final = told
        self.blocks: Final = blocks
        self.size: Final = size
        self.session: Final = session
        self.session_name: Final = session_name
        self.prefix: Final = prefix
        self.key: Final = key


EMPTY = Prompt(NONE, 0)


@dataclass(frozen=True)
class TextSide:
    """What turns a chat into tokens, for the models that it is for."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    models: frozenset[str] = field(default_factory=frozenset)

    def serves(self, model: str) -> bool:
        """Whether it is this model's; for all where none was named."""
        return not self.models or model in self.models


def read_prompt(
    asked: Asked,
    text_side: TextSide | None,
    told_sizes: Sequence[int] = (),
    adapters: Container[str] = (),
) -> Prompt:
    """The keys of a request's prompt. Never refuses.

    ``told_sizes`` are the block sizes of replicas that tell what they hold; ``adapters`` are the
    models among them that are another one's adapters.
    """
    body = asked.json
    if body is None:
        return EMPTY
    api = _api(asked.path)
    salt = body.get("cache_salt")
    own_salt = salt if isinstance(salt, str) else ""
    scope = _root("content", asked.model, asked.salt, own_salt, 1)
    content = read_content(api, body)
    name, named, key = _session(scope, asked, body)
    tokens = _tokens(asked, api, text_side)
    if tokens is None:
        keys, size, begins = _chunked(scope, content)
        prefix = begins or _family(keys, CHUNK_TOKENS)
        return Prompt(keys, 0, (), (), size, named or begins, name, prefix, key)
    size = told_sizes[0] if told_sizes else DEFAULT_BLOCK_TOKENS
    root = _root("tokens", asked.model, asked.salt, own_salt, size)
    blocks = KeyChain(root, size, tokens).keys
    keys = joined(blocks)
    adapter = asked.model if asked.model in adapters else ""
    # vLLM's events have the salt as it was sent, kvikk's a digest with the tenant's in it.
    salts = dict.fromkeys((own_salt, published_salt(server_salt(asked.salt, own_salt))))
    told = tuple(
        View(size, KeyChain(told_root(size, adapter, salt), size, tokens).keys)
        for size in told_sizes
        for salt in salts
    )
    beginning = Content(content.parts[: content.beginning], content.beginning)
    _, _, begins = _chunked(scope, beginning)
    prefix = begins or _family(keys, size)
    if not told:
        blocks = ()
    return Prompt(keys, size, told, blocks, len(tokens), named or begins, name, prefix, key)


@lru_cache(maxsize=64)
def _api(path: str) -> Api | None:
    return next((api for ending, api in _APIS.items() if path.endswith(ending)), None)


def told_root(block_size: int, adapter: str, salt: str) -> bytes:
    """The root of blocks that replicas tell of; of which model need not be said, but for adapters:

    a replica is asked only for what it serves.
    """
    return _root("told", adapter, b"", salt, block_size)


def server_salt(tenant_salt: bytes, cache_salt: str) -> bytes:
    """What a kvikk server makes of a tenant's salt and of a request's own."""
    if not tenant_salt and not cache_salt:
        return b""
    return sha256(tenant_salt + b"\0" + cache_salt.encode("utf-8", "surrogatepass")).digest()


@lru_cache(maxsize=4096)
def _root(kind: str, model: str, tenant_salt: bytes, salt: str, block_size: int) -> bytes:
    return root_key(
        model=model.encode("utf-8", "surrogatepass"),
        block_size=block_size,
        kv_dtype="",
        numerics=f"router, {kind}",
        salt=server_salt(tenant_salt, salt),
    )


def _session(scope: bytes, asked: Asked, body: Mapping[str, Any]) -> tuple[str, bytes, bytes]:
    """The caller's own word for its session, that word's digest, and its key.

    A word is a key too, but for a user's name: that says who asks, not what belongs together.
    """
    given_header = asked.headers.get(b"x-session-id")
    if not given_header and "prompt_cache_key" not in body and "metadata" not in body:
        return "", b"", b""
    header = (given_header or b"").decode("latin-1")
    words = ((body.get("prompt_cache_key"), True), (header, True), (_metadata_user(body), False))
    for given, is_key in words:
        if isinstance(given, str) and given:
            word = given.encode("utf-8", "surrogatepass")
            named = sha256(b"session\0" + scope + word).digest()
            return given[:256], named, named if is_key else b""
    return "", b"", b""


def may_have_key(asked: Asked) -> bool:
    """Whether the caller may have named what keeps its requests together."""
    body = asked.json
    return b"x-session-id" in asked.headers or (body is not None and "prompt_cache_key" in body)


def _metadata_user(body: Mapping[str, Any]) -> object:
    metadata = body.get("metadata")
    return metadata.get("user_id") if isinstance(metadata, dict) else None


def _chunked(scope: bytes, content: Content) -> tuple[Keys, int, bytes]:
    """Keys of its chunks, its length in bytes, and a digest of how a conversation begins.

    The key of the last whole chunk of the beginning stands for all before it. Empty if it is none.
    """
    data, size, stop, rest = chunk_keys(scope, content.parts, content.beginning)
    keys, chunks = Keys(data, CHUNK_KEY_BYTES), stop // CHUNK_BYTES
    if not stop:
        return keys, size, b""
    before = keys.at(chunks - 1) if chunks else scope
    return keys, size, xxhash.xxh3_128_digest(b"beginning\0" + before + rest)


def _tokens(asked: Asked, api: Api | None, text_side: TextSide | None) -> Sequence[int] | None:
    """The prompt's tokens, None where nobody knows: no tokeniser, or more than plain text."""
    if api is not None and text_side is None:
        return None
    assert asked.json is not None
    prompt = asked.json.get("prompt")
    if api is None and _is_token_ids(prompt):
        return cast(list[int], prompt)
    if text_side is None or not text_side.serves(asked.model):
        return None
    try:
        if api is None:
            return text_side.tokenizer.encode(prompt) if isinstance(prompt, str) else None
        messages = _plain_messages(asked.json) if api == "chat_completions" else None
        if messages is None or text_side.template is None:
            return None
        return text_side.tokenizer.encode(text_side.template.render(messages), add_bos=False)
    except KvikkError:
        return None  # the replica will say what is wrong with it


def _plain_messages(body: Mapping[str, Any]) -> list[dict[str, str]] | None:
    messages = body.get("messages")
    if not isinstance(messages, list) or body.get("tools"):
        return None
    plain = []
    for message in messages:
        if not isinstance(message, dict) or set(message) - {"role", "content", "name"}:
            return None
        role, content = message.get("role"), message.get("content")
        if isinstance(content, list):
            texts = [part.get("text") for part in content if isinstance(part, dict)]
            if len(texts) != len(content) or not all(isinstance(text, str) for text in texts):
                return None
            content = "".join(map(str, texts))
        if not isinstance(role, str) or not isinstance(content, str):
            return None
        plain.append({"role": "system" if role == "developer" else role, "content": content})
    return plain


def _is_token_ids(prompt: object) -> bool:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(isinstance(token, int) and 0 <= token < 1 << 32 for token in prompt)
    )


def _family(keys: Keys, block_tokens: int) -> bytes:
    """What stands for a prompt without messages: a key that stays the same as the prompt grows."""
    blocks = max(1, _FAMILY_TOKENS // block_tokens)
    return keys.at(blocks - 1 if keys.count >= blocks else 0)
