"""A prompt's block keys in one piece: hundreds of objects would be hundreds of places in memory."""

from collections.abc import Sequence
from typing import Final


class Keys:
    """``count`` keys of ``width`` bytes each, one after the other. Of one prompt; equal by id."""

    __slots__ = ("count", "data", "width")

    def __init__(self, data: bytes, width: int) -> None:
        self.data: Final = data
        self.width: Final = width
        self.count: Final = len(data) // width

    def at(self, place: int) -> bytes:
        """One key."""
        return self.data[place * self.width : (place + 1) * self.width]

    def first(self, count: int) -> "Keys":
        """The first so many, which are all if there are no more."""
        return self if count >= self.count else Keys(self.data[: count * self.width], self.width)

    def split(self) -> list[bytes]:
        """Each by itself."""
        return [self.at(place) for place in range(self.count)]


def joined(keys: Sequence[bytes]) -> Keys:
    """Keys of one width, in one piece."""
    return Keys(b"".join(keys), len(keys[0])) if keys else NONE


NONE = Keys(b"", 1)
