"""Block keys: the names of full blocks, equal exactly where keys and values are equal.

    root key ──► key 0 ──► key 1 ──► key 2        key i = SHA-256(key i-1 ‖ tokens of block i)
      │           │         │         │
      │        tokens    tokens    tokens
      └─ everything but tokens that changes keys and values

This is the only place that makes keys; engine, tiers, router and audit all call it. SHA-256
because a tenant who could make two prompts meet could read or poison another's cache; no seed and
no process state, so that a key means the same on every machine and after every restart.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from hashlib import sha256
from struct import iter_unpack

import xxhash

KEY_BYTES = 32
TOKEN_BYTES = 4

# Changes whenever the meaning of a key does. Keys of two versions never meet.
_VERSION = b"kvikk block key, version 1"


def root_key(
    *,
    model: bytes,
    block_size: int,
    kv_dtype: str,
    numerics: str,
    adapter: bytes = b"",
    salt: bytes = b"",
) -> bytes:
    """The first parent: a digest of all that changes keys and values apart from the tokens.

    ``model`` and ``adapter`` are digests of contents, never names: new weights under an old name
    are another model. ``numerics`` names backend, code path and revision. ``salt`` is the tenant's:
    two salts never share a block. ``block_size`` is in tokens.
    """
    digest = sha256()
    for field in (
        _VERSION,
        model,
        block_size.to_bytes(8, "little"),
        kv_dtype.encode(),
        numerics.encode(),
        adapter,
        salt,
    ):
        # The length in front keeps ("ab", "c") apart from ("a", "bc").
        digest.update(len(field).to_bytes(8, "little"))
        digest.update(field)
    return digest.digest()


def block_key(parent: bytes, tokens: Iterable[int]) -> bytes:
    """A full block's key: SHA-256 of its parent's key and its tokens as little-endian uint32."""
    return sha256(parent + _token_bytes(tokens)).digest()


def content_keys(root: bytes, content: bytes, chunk_bytes: int) -> list[bytes]:
    """The keys of a prompt that nobody has tokenised: a chain over its whole chunks of bytes.

    They steer requests and name nothing whose contents would be used, so that a hash will do which
    is quick and not proof against who looks for collisions: XXH3 in 128 bits. They never meet those
    of tokens, which are longer.
    """
    digest, key, whole = xxhash.xxh3_128_digest, root, len(content) // chunk_bytes * chunk_bytes
    chunks = iter_unpack(f"{chunk_bytes}s", memoryview(content)[:whole])  # cut in C
    return [key := digest(key + chunk) for (chunk,) in chunks]


class KeyChain:
    """The keys of one sequence's full blocks, kept up to date as its tokens grow.

    Costs O(new tokens) per ``extend``; keeps no tokens but those of the unfinished last block.
    """

    def __init__(self, root: bytes, block_size: int, tokens: Iterable[int] = ()) -> None:
        self._block_bytes = block_size * TOKEN_BYTES
        self._parent = root
        self._keys: list[bytes] = []
        self._rest = b""
        self.extend(tokens)

    @property
    def keys(self) -> Sequence[bytes]:
        """The key of every full block so far, first block first. Grows in place; read only."""
        return self._keys

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens, each in 0 … 2³² - 1 (else OverflowError, and nothing is appended)."""
        data = self._rest + _token_bytes(tokens)
        keys = _chain(self._parent, data, self._block_bytes)
        if keys:
            self._keys += keys
            self._parent = keys[-1]
        self._rest = data[len(keys) * self._block_bytes :]


def _chain(parent: bytes, data: bytes, width: int) -> list[bytes]:
    """The key of each whole piece of ``width`` bytes, each with the one before as its parent."""
    digest, keys = sha256, []
    for start in range(0, len(data) - width + 1, width):
        parent = digest(parent + data[start : start + width]).digest()
        keys.append(parent)
    return keys


def _token_bytes(tokens: Iterable[int]) -> bytes:
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
