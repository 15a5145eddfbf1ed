"""How many blocks a conversation takes: what the engine allocates, and what is printed on paper."""


def most_blocks(
    num_tokens: int, window_tokens: int | None, block_size: int, step_tokens: int
) -> int:
    """The most blocks of a group that a sequence of ``num_tokens`` holds at any time.

    It is computed in steps of at most ``step_tokens``. With a window it then needs a step's tokens
    and the window - 1 before them, wherever these begin: a span of n tokens touches at most
    (n - 2) // block + 2 blocks.
    """
    blocks = -(-num_tokens // block_size)
    if window_tokens is None:
        return blocks
    return min(blocks, (window_tokens - 1 + step_tokens - 2) // block_size + 2)


def held_blocks(num_tokens: int, window_tokens: int | None, block_size: int) -> int:
    """The blocks of a group that a sequence holds between two steps, with ``num_tokens`` computed.

    The next token, at position num_tokens, sees from num_tokens - window + 1 on; whole blocks
    before that have been given back.
    """
    blocks = -(-num_tokens // block_size)
    if window_tokens is None:
        return blocks
    return blocks - max(0, num_tokens - window_tokens + 1) // block_size
