"""How much of requests' bodies is held in memory, of all clients together."""

from typing import TYPE_CHECKING

from kvikk.router.proxy.messages import RefusalError

if TYPE_CHECKING:
    from kvikk.router.proxy.request import ClientRequest


class BodyBudget:
    """Bodies are held while they come in, wait, and may yet be sent again, and not a byte longer.

    A limit a body bounds no memory: many clients may each send almost that much, slowly.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes

    def take(self, request: "ClientRequest", num_bytes: int) -> None:
        """More of a request's body has come. Raises RefusalError if that is too much in all."""
        if self.held_bytes + num_bytes > self._limit_bytes:
            raise RefusalError(
                503,
                f"the router holds {self.held_bytes:,} bytes of requests and cannot take more now; "
                "try again in a moment",
                "overloaded",
                [(b"retry-after", b"1")],
            )
        self.held_bytes += num_bytes
        request.held_bytes += num_bytes

    def give_back(self, request: "ClientRequest") -> None:
        """A request's body is needed no more: drop it. Any number of times."""
        self.held_bytes -= request.held_bytes
        request.held_bytes = 0
        request.body = b""
        request.pieces = None
