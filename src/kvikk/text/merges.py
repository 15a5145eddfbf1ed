"""SentencePiece's scores turned into BPE merges, and kept: the slow step of loading a tokeniser.

SentencePiece joins, again and again, the two neighbours whose union is the best-scored token. BPE
joins the pair that comes first in a list. The list that makes them equal holds every way to cut
every token into two tokens, best score first: half a million pairs and over a second for Gemma's
vocabulary, so it is kept in the user's cache folder under a digest of all it was made from.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvikk.files.cache_folder import cache_folder, write_atomically
from kvikk.text.vocabulary import TokenType

_REVISION = b"sentencepiece-merges-1"
_DIGEST_BYTES = 32


def sentencepiece_merges(
    pieces: Sequence[str], types: Sequence[int], scores: NDArray[np.float32]
) -> list[tuple[str, str]]:
    """All merges, best first, as pairs of pieces. From the cache folder if it has them whole."""
    made_from = hashlib.sha256(_REVISION)
    for part in ("\0".join(pieces).encode(), np.array(types, np.int8).tobytes(), scores.tobytes()):
        made_from.update(hashlib.sha256(part).digest())
    path = cache_folder() / "tokenizers" / f"{made_from.hexdigest()}.merges"
    pairs = _read(path)
    if pairs is None:
        pairs = merge_pairs(pieces, types, scores)
        body = pairs.tobytes()
        write_atomically(path, hashlib.sha256(body).digest() + body)
    names = np.array(pieces, object)
    return list(zip(names[pairs[:, 0]].tolist(), names[pairs[:, 1]].tolist(), strict=True))


def merge_pairs(
    pieces: Sequence[str], types: Sequence[int], scores: NDArray[np.float32]
) -> NDArray[np.int32]:
    """The merges as token ids ``[merges, 2]``: by score, best first, then by the parts' ids.

    Only normal tokens merge and are merged: the others are found in the text before, or never.
    """
    id_of = {
        piece: token_id
        for token_id, (piece, kind) in enumerate(zip(pieces, types, strict=True))
        if kind == TokenType.NORMAL
    }
    merges = []
    for piece, token_id in id_of.items():
        cost = -float(scores[token_id])
        for cut in range(1, len(piece)):
            left = id_of.get(piece[:cut])
            if left is not None and (right := id_of.get(piece[cut:])) is not None:
                merges.append((cost, left, right))
    merges.sort()
    return np.array([pair[1:] for pair in merges], np.int32).reshape(-1, 2)


def _read(path: Path) -> NDArray[np.int32] | None:
    # A file cut short by a full disk, or changed since, is as good as none.
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        return None
    return np.frombuffer(body, np.int32).reshape(-1, 2)
