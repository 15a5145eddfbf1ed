"""What two requests' prompts have in common, told from digests of their pieces.

A fingerprint holds no text. Equal pieces in equal places make equal digests, whatever marks a
caller moves: those are no part of a prompt.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvikk.wire.segments import Section, Segment

_DIGEST_BYTES = 12


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One request: its model, its prompt's pieces by section, its parameters and its tokens.

    ``sections`` hold a digest a piece, one behind the other; ``tokens`` are uint32. ``parameters``
    have those that a provider takes into account, as JSON.
    """

    model: str
    sections: Mapping[Section, bytes]
    parameters: Mapping[str, str]
    tokens: bytes

    @classmethod
    def of(
        cls,
        model: str,
        segments: Sequence[Segment],
        parameters: Mapping[str, Any],
        token_ids: Sequence[int],
    ) -> "Fingerprint":
        """The fingerprint of a request with these pieces, in the order of rendering."""
        sections: dict[Section, bytes] = {"tools": b"", "system": b"", "messages": b""}
        for segment in segments:
            sections[segment.section] += _digest(segment)
        written = {name: json.dumps(value, sort_keys=True) for name, value in parameters.items()}
        return cls(model, sections, written, np.asarray(token_ids, np.uint32).tobytes())

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.tokens) // 4

    @property
    def num_bytes(self) -> int:
        """About what it takes to keep."""
        written = sum(len(name) + len(value) for name, value in self.parameters.items())
        return len(self.tokens) + sum(map(len, self.sections.values())) + written


@dataclass(frozen=True, slots=True)
class Comparison:
    """A request beside an earlier one: what has ``changed``, and how their prompts begin alike.

    ``changed`` has ``model``, ``tools``, ``system``, ``messages``, ``compacted`` (earlier messages
    were left out) and names of parameters. Messages that were added at the end are no change.
    """

    changed: frozenset[str]
    common_tokens: int
    earlier_tokens: int


def compare(earlier: Fingerprint, now: Fingerprint) -> Comparison:
    """What keeps ``now`` from going on where ``earlier`` ended."""
    changed = {
        name
        for name in earlier.parameters.keys() | now.parameters.keys()
        if earlier.parameters.get(name) != now.parameters.get(name)
    }
    if earlier.model != now.model:
        changed.add("model")
    for section in ("tools", "system"):
        if earlier.sections[section] != now.sections[section]:
            changed.add(section)
    before, after = earlier.sections["messages"], now.sections["messages"]
    if not after.startswith(before):
        changed.add("compacted" if _is_compacted(before, after) else "messages")
    return Comparison(frozenset(changed), _num_common(earlier, now), earlier.num_tokens)


def _is_compacted(before: bytes, after: bytes) -> bool:
    """Whether ``after`` is shorter and still has the last piece of ``before``."""
    pieces = [after[start : start + _DIGEST_BYTES] for start in range(0, len(after), _DIGEST_BYTES)]
    return len(after) < len(before) and before[-_DIGEST_BYTES:] in pieces


def _num_common(earlier: Fingerprint, now: Fingerprint) -> int:
    size = min(earlier.num_tokens, now.num_tokens)
    left, right = (np.frombuffer(one.tokens, np.uint32, size) for one in (earlier, now))
    different = np.flatnonzero(left != right)
    return int(different[0]) if len(different) else size


def _digest(segment: Segment) -> bytes:
    said = json.dumps([segment.role, segment.kind, segment.text])
    return hashlib.sha256(said.encode()).digest()[:_DIGEST_BYTES]
