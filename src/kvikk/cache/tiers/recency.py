"""What is in a tier of limited size, least recently used first."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator


class Recency:
    """Sizes by key; never more than ``limit_bytes`` together."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._sizes: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, key: bytes) -> bool:
        return key in self._sizes

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._sizes)

    def room_for(self, num_bytes: int) -> list[bytes] | None:
        """Take out what must go for one more of that size; None if it can never fit."""
        if num_bytes > self.limit_bytes:
            return None
        victims = []
        while self.used_bytes + num_bytes > self.limit_bytes:
            key, size = self._sizes.popitem(last=False)
            self.used_bytes -= size
            victims.append(key)
        return victims

    def add(self, key: bytes, num_bytes: int) -> None:
        """Note a new one as the most recent."""
        assert key not in self._sizes
        self._sizes[key] = num_bytes
        self.used_bytes += num_bytes

    def touch(self, keys: Iterable[bytes]) -> None:
        """These were used together, a chain from its beginning: its end is to go first."""
        for key in reversed(list(keys)):
            if key in self._sizes:
                self._sizes.move_to_end(key)

    def drop(self, key: bytes) -> bool:
        """Forget one; False if it is not there."""
        size = self._sizes.pop(key, None)
        self.used_bytes -= size or 0
        return size is not None
