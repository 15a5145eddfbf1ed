"""The keys of a prompt's content. Compiled, ``chunk_keys.c`` stands in its place."""

from kvikk.cache.keys import content_keys

# What a chunk costs is mostly the same at any length, and shorter prompts than one are not compared
# at all: a first question and its system prompt are often some hundred bytes.
CHUNK_BYTES = 256
CHUNK_KEY_BYTES = 16


def chunk_keys(root: bytes, content: bytes) -> bytes:
    """A key of ``CHUNK_KEY_BYTES`` for each whole chunk of ``CHUNK_BYTES``, all in one piece."""
    return b"".join(content_keys(root, content, CHUNK_BYTES))
