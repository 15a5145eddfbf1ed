"""What somebody who watches an engine sees of it: its blocks, and its latest requests.

Looked at between two steps, in the engine's thread; it takes a fraction of a millisecond.
"""

from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from kvikk.engine.accounts import Account
from kvikk.engine.engine import Engine
from kvikk.engine.stats import Stats


@dataclass(frozen=True)
class RequestView:
    """One request that was admitted, and how far it is.

    ``prompt`` holds its prompt's tokens as uint32. It is None where the viewer knows the request
    already or the tokens are forgotten. Only a request that has not ended has ``progress``.
    """

    account: Account
    prompt: bytes | None
    progress: "Progress | None"


@dataclass(frozen=True)
class Progress:
    """How far a request is; one that was preempted is not running, and goes on later."""

    is_running: bool
    computed_tokens: int
    generated_tokens: int


@dataclass(frozen=True)
class EngineView:
    """An engine at one moment, as one reader may see it.

    ``requests`` are the latest, oldest first. ``stats`` and ``states``, which hold a ``BlockState``
    a block and a group each, are all tenants': only the operator has them.
    """

    requests: tuple[RequestView, ...]
    stats: Stats | None
    states: tuple[bytes, ...]


def look(
    engine: Engine, tenant: str | None, num_requests: int, known: Container[str]
) -> EngineView:
    """What a tenant, or the operator (None), sees now of the last ``num_requests`` requests.

    Those that are ``known`` come without their prompts.
    """
    accounts = [] if engine.books is None else engine.books.accounts.latest(num_requests, tenant)
    requests = tuple(
        RequestView(
            account,
            None if account.request_id in known else _prompt(engine, account),
            _progress(engine, account),
        )
        for account in reversed(accounts)
    )
    if tenant is not None:
        return EngineView(requests, None, ())
    return EngineView(requests, engine.stats(), engine.cache.states_by_group())


def _prompt(engine: Engine, account: Account) -> bytes | None:
    if engine.books is None:
        return None
    tokens = engine.books.teller(tenant=None).tokens_of(account.sequence)
    if tokens is None:
        return None
    return np.asarray(tokens[: account.ledger.num_tokens], np.uint32).tobytes()


def _progress(engine: Engine, account: Account) -> Progress | None:
    sequence = engine.find(account.request_id)
    if sequence is None or sequence.number != account.sequence:
        return None
    return Progress(sequence.is_running, sequence.num_computed, sequence.num_generated)
