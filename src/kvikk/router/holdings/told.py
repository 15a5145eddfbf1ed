"""What a replica holds by its own word: a mirror of its prefix cache, kept from KV events.

The engine's hashes depend on its seed and version, so blocks get the router's own keys, from their
tokens; a table leads from the engine's hash to ours. A block may be there more than once (in two
media, in two groups of layers) and is gone when the last copy is.
"""

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvikk.cache.keys import block_key, root_key
from kvikk.router.holdings.index import PrefixIndex
from kvikk.wire.kv_events import BlockHash, KvBatch, KvCleared, KvEvent, KvRemoved, KvStored

RootKey = Callable[[int, str, str], bytes]
"""The root of prompts: block size, adapter, and what else the first block depends on (a salt)."""

# Of what was removed so much is remembered, to know it again.
_REMEMBERED_BLOCKS = 1 << 17

_Copy = tuple[str | None, int | None]


@dataclass(slots=True)
class _Block:
    key: bytes
    copies: set[_Copy]


class Told:
    """The blocks of one replica. ``max_blocks`` bounds memory; an engine has fewer.

    Of the ``stored_blocks``, ``again_blocks`` had been there before and were removed, and
    ``scattered_blocks`` were on another replica at that moment.
    """

    def __init__(
        self, slot: int, index: PrefixIndex, root: RootKey, max_blocks: int = 1 << 22
    ) -> None:
        self.block_sizes: set[int] = set()
        self.adapters: set[str] = set()
        self.stored_blocks = 0
        self.removed_blocks = 0
        self.again_blocks = 0
        self.scattered_blocks = 0
        self.unknown_parents = 0
        self._slot = slot
        self._index = index
        self._root = root
        self._max_blocks = max_blocks
        self._blocks: dict[BlockHash, _Block] = {}
        self._removed_keys: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def is_known(self) -> bool:
        """Whether it has said anything that a prompt could be held against."""
        return bool(self.block_sizes)

    def hear(self, batch: KvBatch) -> None:
        """Follow what happened."""
        for event in batch.events:
            self._hear(event)

    def clear(self) -> None:
        """Nothing is known any more."""
        self._index.remove(self._slot, [block.key for block in self._blocks.values()])
        self._blocks.clear()

    def _hear(self, event: KvEvent) -> None:
        if isinstance(event, KvStored):
            # What bounds a hit is the group that keeps all tokens.
            if event.keeps_all and event.block_hashes:
                self._stored(event)
        elif isinstance(event, KvRemoved):
            self._removed(event)
        elif isinstance(event, KvCleared):
            self.clear()

    def _stored(self, event: KvStored) -> None:
        size = event.block_size
        self.block_sizes.add(size)
        if event.adapter:
            self.adapters.add(event.adapter)
        extra = [*event.extra_keys, *[None] * len(event.block_hashes)]
        parent = self._parent(event, extra)
        if parent is None:
            self.unknown_parents += 1
            return
        if len(self._blocks) + len(event.block_hashes) > self._max_blocks:
            self.clear()  # what is told has no end: somebody loses track, and it is not believed
        copy = (event.medium, event.group)
        keys = []
        for number, name in enumerate(event.block_hashes):
            block = self._blocks.get(name)
            if block is None:
                tokens = event.token_ids[number * size : (number + 1) * size]
                key = block_key(parent, tokens)
                block = self._blocks[name] = _Block(key, set())
                keys.append(key)
                self.stored_blocks += 1
            block.copies.add(copy)
            parent = block.key
            if number + 1 < len(event.block_hashes) and extra[number + 1]:
                parent = _with(parent, extra[number + 1])
        self.scattered_blocks += sum(self._index.holders(key) > 0 for key in keys)
        for key in keys:
            if key in self._removed_keys:
                del self._removed_keys[key]
                self.again_blocks += 1
        self._index.add(self._slot, keys)

    def _parent(self, event: KvStored, extra: list[Any]) -> bytes | None:
        """The key before the first block, None if it was never told of."""
        if event.parent_block_hash is not None:
            known = self._blocks.get(event.parent_block_hash)
            if known is None:
                return None
            return _with(known.key, extra[0]) if extra[0] else known.key
        names = extra[0] if isinstance(extra[0], list) else [extra[0]] if extra[0] else []
        others = [name for name in names if name != event.adapter]
        salt = others[0] if len(others) == 1 and isinstance(others[0], str) else ""
        root = self._root(event.block_size, event.adapter, salt)
        return _with(root, others) if others and not salt else root

    def _removed(self, event: KvRemoved) -> None:
        copy = (event.medium, event.group)
        keys = []
        for name in event.block_hashes:
            block = self._blocks.get(name)
            if block is None:
                continue
            block.copies.discard(copy)
            if not block.copies:
                del self._blocks[name]
                keys.append(block.key)
        self.removed_blocks += len(keys)
        self._removed_keys.update(dict.fromkeys(keys))
        while len(self._removed_keys) > _REMEMBERED_BLOCKS:
            self._removed_keys.popitem(last=False)
        self._index.remove(self._slot, keys)


def _with(key: bytes, extra: Any) -> bytes:
    """A key that only those meet who have the same beside their tokens (images, prompts' parts)."""
    told = json.dumps(extra, default=repr).encode()
    return root_key(model=key, block_size=1, kv_dtype="", numerics="extra keys", salt=told)
