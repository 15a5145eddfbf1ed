"""``cache_control``: where a caller wants the cache to be written, and the API's rules for it.

At most four markers, of which the one at the top of a body is one; and along tools, system and
messages the longer lifetime comes first, since an entry must not end before what it stands on.
"""

from dataclasses import dataclass
from typing import Literal

from kvikk.wire.reading import JsonValue

MAX_MARKERS = 4

Lifetime = Literal["5m", "1h"]


@dataclass(frozen=True, slots=True)
class CacheControl:
    """One marker: its lifetime, and the place in the body of the block that bears it."""

    lifetime: Lifetime
    place: JsonValue


class Markers:
    """The markers of one body, read in the order of rendering."""

    def __init__(self) -> None:
        self._found: list[CacheControl] = []

    def read(self, block: JsonValue) -> None:
        """Take note of a block's marker, if it bears one.

        Raises RequestError for one that makes no sense there: unknown, or on an empty text.
        """
        control = block.get("cache_control")
        if control.is_null:
            return
        if control.get("type").string() != "ephemeral":
            control.get("type").fail("expected 'ephemeral'")
        if block.members().get("type") == "text" and not block.members().get("text"):
            control.fail("cannot be set on an empty text")
        ttl = control.get("ttl")
        lifetime: Lifetime = "5m"
        if not ttl.is_null:
            match ttl.string():
                case "5m" | "1h" as said:
                    lifetime = said
                case _:
                    ttl.fail(f"expected '5m' or '1h', not {ttl.string()[:40]!r}")
        self._found.append(CacheControl(lifetime, control))

    def check(self) -> None:
        """Raise RequestError, at the marker at fault, if there are too many or in a wrong order."""
        if len(self._found) > MAX_MARKERS:
            self._found[MAX_MARKERS].place.fail(
                f"at most {MAX_MARKERS} blocks may have cache_control, and this is one of "
                f"{len(self._found)}; remove it from the others that matter least"
            )
        shorter: CacheControl | None = None
        for marker in self._found:
            if marker.lifetime == "1h" and shorter is not None:
                marker.place.get("ttl").fail(
                    f"'1h' must not come after the '5m' of {shorter.place.path}; along tools, "
                    "system and messages the longer lifetime comes first"
                )
            if marker.lifetime == "5m":
                shorter = marker
