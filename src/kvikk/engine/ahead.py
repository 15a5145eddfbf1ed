"""Memory made ready while nothing is to do, so that no step waits for it.

A pool's memory is planned and promised, but the system gives it when it is first written, page by
page, in the middle of a step: on a virtual machine whose host has to find it first, that takes
milliseconds for a huge page. So a pause is used to touch the blocks that are given out next. How
far ahead is bounded: what is never needed shall not be taken.
"""

from collections.abc import Iterator

from kvikk.backends.base import Backend, Plan
from kvikk.cache.manager import CacheManager

AHEAD_BYTES = 128 << 20
"""How much memory lies ready, at most, beyond what has been used; thousands of tokens' worth."""


class Ahead:
    """What of one engine's pools is known to be there."""

    def __init__(self, backend: Backend, cache: CacheManager, plan: Plan) -> None:
        self._backend = backend
        self._cache = cache
        row_bytes = sum(group.block_bytes(plan.block_size, plan.kv_dtype) for group in plan.groups)
        self._count = AHEAD_BYTES // row_bytes
        self._touched = [bytearray(num_blocks) for num_blocks in plan.num_blocks]

    def touch(self) -> Iterator[None]:
        """Touch what is to be touched, block by block; no block may be given out meanwhile."""
        for group, touched in enumerate(self._touched):
            for block in self._cache.next_empty(group, self._count):
                if not touched[block]:
                    self._backend.touch(group, block)
                    touched[block] = True
                    yield
