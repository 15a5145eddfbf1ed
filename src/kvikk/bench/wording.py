"""Counts in words, for the lines around a table."""


def counted(count: int, one: str, many: str | None = None) -> str:
    """For example ``1 request``, ``2,000 requests``; ``many`` is ``one`` with an s unless given."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def all_of(count: int, noun: str) -> str:
    """For example ``the one length``, ``both lengths``, ``all 3 lengths``."""
    if count == 1:
        return f"the one {noun}"
    return f"both {noun}s" if count == 2 else f"all {count:,} {noun}s"
