"""Why single blocks of a prompt are not here, and how neighbours are told of together."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from kvikk.cache.ledger.records import NOTHING, Cause, Detail


@dataclass(frozen=True, slots=True)
class BlockCause:
    """One missed block's."""

    cause: Cause
    detail: Detail


def asked_of_windows(
    causes: list[BlockCause | None], reaches: Sequence[int | None]
) -> Iterator[BlockCause | None]:
    """Of what a window group lost, more blocks are asked for the last window's alone: no hit that
    goes on behind it needs others. ``reaches`` are the groups', None where all blocks are needed.
    """
    for group, together in groupby(causes, _lost_by):
        reach = None if group is None else reaches[group]
        lost = list(together)
        needed = 0 if reach is None else max(0, len(lost) - reach)
        for cause in lost[:needed]:
            assert cause is not None
            yield BlockCause(cause.cause, replace(cause.detail, more_blocks=None))
        yield from lost[needed:]


def told_together(causes: Iterable[BlockCause | None]) -> Iterator[BlockCause | None]:
    """Evicted neighbours that went for the same sequence tell what would have kept them all."""
    for like, group in groupby(causes, _without_more_blocks):
        together = list(group)
        if like is not None and like.cause is Cause.EVICTED:
            most = max(cause.detail.more_blocks or 0 for cause in together if cause is not None)
            told = BlockCause(like.cause, replace(like.detail, more_blocks=most or None))
            yield from [told] * len(together)
        else:
            yield from together


def _lost_by(cause: BlockCause | None) -> int | None:
    """The group that evicted a block."""
    return None if cause is None or cause.cause is not Cause.EVICTED else cause.detail.group


def _without_more_blocks(cause: BlockCause | None) -> BlockCause | None:
    if cause is None or cause.detail.more_blocks is None:
        return cause
    return BlockCause(cause.cause, replace(cause.detail, more_blocks=None))


def as_alone(cause: BlockCause | None) -> BlockCause | None:
    """What the tenant may know: nothing that another's prompts could change."""
    if cause is None or cause.cause is Cause.ISOLATED:
        return None
    if cause.cause is Cause.EVICTED:
        return BlockCause(Cause.EVICTED, NOTHING)
    return cause
