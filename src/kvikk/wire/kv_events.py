"""KV events as vLLM sends them over ZeroMQ: which blocks an engine's prefix cache gained and lost.

A message has three frames: topic, sequence number (8 bytes, big-endian), payload. The payload is a
batch in msgpack. Batch and events are each an array (older vLLM) or a map (since 2026); both are
read, the map is written. What is unknown is passed over, so that a newer sender is understood as
far as it can be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from kvikk.errors import RequestError

BlockHash = int | bytes

MAX_PAYLOAD_BYTES = 64 << 20
END_OF_REPLAY = -1

_STORED_FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
_REMOVED_FIELDS = ("block_hashes", "medium", "group_idx")
_KINDS_THAT_KEEP_ALL = ("full_attention", "mla_attention", "sink_full_attention", "unknown")
_MAX_BLOCK_TOKENS = 1 << 20
_MAX_TOKEN = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class KvStored:
    """Blocks that are there now: one chain, ``token_ids`` are all of their tokens.

    ``extra_keys`` has an entry a block where there is more to a block than its tokens (a salt, an
    image's hash); ``group`` and ``medium`` tell copies of the same block apart. A group of layers
    that is not ``keeps_all`` (a window, a state) is no measure of what can be reused.
    """

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    token_ids: Sequence[int]
    block_size: int
    adapter: str = ""
    medium: str | None = None
    extra_keys: tuple[Any, ...] = ()
    group: int | None = None
    window_tokens: int | None = None
    keeps_all: bool = True


@dataclass(frozen=True, slots=True)
class KvRemoved:
    """Copies of blocks that are gone."""

    block_hashes: tuple[BlockHash, ...]
    medium: str | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True)
class KvCleared:
    """Nothing is there any more."""


KvEvent = KvStored | KvRemoved | KvCleared


@dataclass(frozen=True, slots=True)
class KvBatch:
    """What happened by ``at``, in seconds since 1970."""

    at: float
    events: tuple[KvEvent, ...]
    rank: int | None = None


def encode_batch(batch: KvBatch) -> bytes:
    """A batch as a payload, in the map form."""
    value = {"ts": batch.at, "events": [_event_map(event) for event in batch.events]}
    if batch.rank is not None:
        value["data_parallel_rank"] = batch.rank
    return msgspec.msgpack.encode(value)


def decode_batch(payload: bytes) -> KvBatch:
    """A batch from a payload of either form. Raises RequestError for what is none."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise RequestError(
            f"a batch of KV events has {len(payload)} bytes; {MAX_PAYLOAD_BYTES} fit"
        )
    try:
        value = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"a batch of KV events is no msgpack: {error}") from None
    at, events, rank = _fields(value, ("ts", "events", "data_parallel_rank"))
    if not isinstance(at, int | float) or not isinstance(events, list):
        raise RequestError("a batch of KV events has a time and a list of events")
    read = (_read_event(event) for event in events)
    return KvBatch(
        float(at),
        tuple(event for event in read if event is not None),
        rank if isinstance(rank, int) else None,
    )


def encode_sequence(number: int) -> bytes:
    """A sequence number as its frame."""
    return number.to_bytes(8, "big", signed=True)


def decode_sequence(frame: bytes) -> int:
    """A sequence number from its frame. Raises RequestError."""
    if len(frame) != 8:
        raise RequestError(f"a sequence number has 8 bytes, not {len(frame)}")
    return int.from_bytes(frame, "big", signed=True)


def published_salt(salt: bytes) -> str:
    """What a kvikk server's events say of a salt: enough to tell two apart, no way back to it."""
    return sha256(b"published salt\0" + salt).hexdigest()[:32] if salt else ""


def _event_map(event: KvEvent) -> dict[str, Any]:
    if isinstance(event, KvCleared):
        return {"type": "AllBlocksCleared"}
    if isinstance(event, KvRemoved):
        return {
            "type": "BlockRemoved",
            "block_hashes": event.block_hashes,
            "medium": event.medium,
            "group_idx": event.group,
        }
    kind = "full_attention" if event.keeps_all else "sliding_window"
    return {
        "type": "BlockStored",
        "block_hashes": event.block_hashes,
        "parent_block_hash": event.parent_block_hash,
        "token_ids": event.token_ids,
        "block_size": event.block_size,
        "lora_id": None,
        "medium": event.medium,
        "lora_name": event.adapter or None,
        "extra_keys": event.extra_keys or None,
        "group_idx": event.group,
        "kv_cache_spec_kind": kind,
        "kv_cache_spec_sliding_window": event.window_tokens,
    }


def _read_event(value: Any) -> KvEvent | None:
    name = value.get("type") if isinstance(value, dict) else None
    if isinstance(value, list) and value:
        name, *value = value
    if name == "AllBlocksCleared":
        return KvCleared()
    if name == "BlockRemoved":
        hashes, medium, group = _fields(value, _REMOVED_FIELDS)
        return KvRemoved(_hashes(hashes), _text_or_none(medium), _number_or_none(group))
    if name == "BlockStored":
        return _stored(*_fields(value, _STORED_FIELDS))
    if not isinstance(name, str):
        raise RequestError("a KV event has a type")
    return None


def _stored(
    hashes: Any,
    parent: Any,
    token_ids: Any,
    block_size: Any,
    lora_id: Any,
    medium: Any,
    lora_name: Any,
    extra_keys: Any,
    group: Any,
    kind: Any,
    window: Any,
) -> KvStored:
    block_hashes = _hashes(hashes)
    if not isinstance(block_size, int) or not 1 <= block_size <= _MAX_BLOCK_TOKENS:
        raise RequestError(f"BlockStored has a block_size of {block_size!r}")
    if not isinstance(token_ids, list) or not all(
        isinstance(token, int) and 0 <= token <= _MAX_TOKEN for token in token_ids
    ):
        raise RequestError("BlockStored has token_ids that are no token ids")
    if len(token_ids) != len(block_hashes) * block_size:
        raise RequestError(
            f"{len(token_ids)} tokens are not {len(block_hashes)} blocks of {block_size}"
        )
    if parent is not None and not isinstance(parent, int | bytes):
        raise RequestError("BlockStored has a parent_block_hash that is no hash")
    adapter = lora_name if isinstance(lora_name, str) else "" if lora_id is None else str(lora_id)
    # Older senders do not say of which kind a group is.
    window_tokens = window if isinstance(window, int) else None
    keeps_all = window_tokens is None if kind is None else kind in _KINDS_THAT_KEEP_ALL
    return KvStored(
        block_hashes,
        parent,
        token_ids,
        block_size,
        adapter,
        _text_or_none(medium),
        tuple(extra_keys) if isinstance(extra_keys, list) else (),
        _number_or_none(group),
        window_tokens,
        keeps_all,
    )


def _fields(value: Any, names: Sequence[str]) -> list[Any]:
    """A map's or an array's fields by name; what is not there is None, what is more is left out."""
    if isinstance(value, Mapping):
        return [value.get(name) for name in names]
    if isinstance(value, list):
        return [*value, *[None] * len(names)][: len(names)]
    raise RequestError("a KV event is neither an array nor a map")


def _hashes(value: Any) -> tuple[BlockHash, ...]:
    if not isinstance(value, list) or not all(isinstance(one, int | bytes) for one in value):
        raise RequestError("a KV event has block_hashes that are no hashes")
    return tuple(value)


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number_or_none(value: Any) -> int | None:
    return value if isinstance(value, int) else None
