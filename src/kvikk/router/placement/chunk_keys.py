"""The keys of a prompt's content. Compiled, ``chunk_keys.c`` stands in its place."""

from kvikk.cache.keys import content_keys

# What a chunk costs is mostly the same at any length, and shorter prompts than one are not compared
# at all: a first question and its system prompt are often some hundred bytes.
CHUNK_BYTES = 256
CHUNK_KEY_BYTES = 16


def chunk_keys(root: bytes, parts: list[str], beginning: int) -> tuple[bytes, int, int, bytes]:
    """A key of ``CHUNK_KEY_BYTES`` for each whole chunk of ``CHUNK_BYTES``, all in one piece.

    Also how many bytes the parts are together, how many the first ``beginning`` of them are, and
    what these have behind their last whole chunk.
    """
    content, begins = _bytes(parts), _bytes(parts[:beginning])
    keys = b"".join(content_keys(root, content, CHUNK_BYTES))
    return keys, len(content), len(begins), begins[len(begins) // CHUNK_BYTES * CHUNK_BYTES :]


def _bytes(parts: list[str]) -> bytes:
    return "".join(parts).encode("utf-8", "surrogatepass")
