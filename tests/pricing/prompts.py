"""Prompts for the rules, made of pieces that are lists of tokens."""

import hashlib
from dataclasses import dataclass

from kvikk.pricing.caching import Caching
from kvikk.pricing.prompt import Marker, Position, ProviderPrompt, TokenDigests
from kvikk.pricing.registry import RuleSet, find

# What a template writes behind the last message: it begins the answer.
TEMPLATE_TOKENS = (1, 2, 3)


@dataclass(frozen=True)
class Piece:
    """``tokens`` in a row; ``marker`` is a ttl, "" for the default one."""

    tokens: tuple[int, ...]
    role: str = "user"
    section: str = "messages"
    kind: str = "text"
    ends_message: bool = True
    marker: str | None = None


def words(seed: int, count: int) -> tuple[int, ...]:
    """``count`` tokens that no other seed begins with."""
    return tuple((seed * 1_000_003 + index * 7919) % 50_000 + 10 for index in range(count))


def user(tokens, **options) -> Piece:
    return Piece(tuple(tokens), **options)


def system(tokens, **options) -> Piece:
    return Piece(tuple(tokens), role="system", section="system", **options)


def tool(tokens, **options) -> Piece:
    options = {"role": "", "ends_message": False} | options
    return Piece(tuple(tokens), section="tools", kind="tool_definition", **options)


def said(tokens, **options) -> Piece:
    return Piece(tuple(tokens), role="assistant", **options)


def result(tokens, **options) -> Piece:
    return Piece(tuple(tokens), role="tool", kind="tool_result", **options)


def prompt(*pieces: Piece, **options) -> ProviderPrompt:
    chain = hashlib.sha256()
    positions = []
    tokens: list[int] = []
    for piece in pieces:
        tokens += piece.tokens
        chain.update(repr((piece.section, piece.role, piece.kind, piece.tokens)).encode())
        positions.append(
            Position(
                len(piece.tokens),
                chain.digest(),
                piece.section,
                piece.kind,
                piece.role,
                piece.ends_message,
                None if piece.marker is None else Marker(piece.marker),
                path=f"$[{len(positions)}]",
            )
        )
    tokens += TEMPLATE_TOKENS
    return ProviderPrompt(tuple(positions), len(tokens), digest_at=TokenDigests(tokens), **options)


def rules(name: str) -> RuleSet:
    found = find(name)
    assert isinstance(found, RuleSet)
    return found


def caching(name: str) -> Caching:
    found = rules(name).caching
    assert isinstance(found, Caching)
    return found


def spans(decision) -> list[tuple]:
    return [(span.start, span.stop, span.kind, span.reason.value) for span in decision.spans]
