"""What is kept of answered requests: to compare later ones with, and to go on from.

Each tenant has a part of its own of a bounded memory, so that nobody's can be read, or pushed out,
by another.
"""

from collections import OrderedDict
from dataclasses import dataclass

from kvikk.wire.fingerprint import Fingerprint

KEPT_BYTES = 64 << 20
_OVERHEAD_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Kept:
    """One request: its fingerprint, and of a stored response its JSON and all its items'."""

    fingerprint: Fingerprint
    response: bytes | None = None
    items: bytes = b""

    @property
    def num_bytes(self) -> int:
        """About what it takes."""
        text = len(self.response or b"") + len(self.items)
        return _OVERHEAD_BYTES + self.fingerprint.num_bytes + text


class KeptRequests:
    """The latest requests of each tenant, ``KEPT_BYTES`` of all; belongs to the event loop."""

    def __init__(self, num_tenants: int) -> None:
        self._limit_bytes = KEPT_BYTES // max(1, num_tenants)
        self._tenants: dict[str, _Shelf] = {}

    def put(self, tenant: str, request_id: str, kept: Kept) -> None:
        """Keep one more, in the place of the oldest where room is short; none that never fits."""
        self._tenants.setdefault(tenant, _Shelf(self._limit_bytes)).put(request_id, kept)

    def find(self, tenant: str, request_id: str) -> Kept | None:
        """A request of this tenant, while it is kept."""
        shelf = self._tenants.get(tenant)
        return None if shelf is None else shelf.find(request_id)

    def remove(self, tenant: str, request_id: str) -> Kept | None:
        """Keep it no longer; what was kept, if it was."""
        shelf = self._tenants.get(tenant)
        return None if shelf is None else shelf.remove(request_id)


class _Shelf:
    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._num_bytes = 0
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def put(self, request_id: str, kept: Kept) -> None:
        self.remove(request_id)
        if kept.num_bytes > self._limit_bytes:
            return
        self._kept[request_id] = kept
        self._num_bytes += kept.num_bytes
        while self._num_bytes > self._limit_bytes:
            self.remove(next(iter(self._kept)))

    def find(self, request_id: str) -> Kept | None:
        kept = self._kept.get(request_id)
        if kept is not None:
            self._kept.move_to_end(request_id)
        return kept

    def remove(self, request_id: str) -> Kept | None:
        kept = self._kept.pop(request_id, None)
        if kept is not None:
            self._num_bytes -= kept.num_bytes
        return kept
