"""What one request adds to a replica's load, from the decision until it has ended."""

from kvikk.router.records import ReplicaView


class Load:
    """Taken when it is made. Belongs to whoever took it, and is given back once."""

    __slots__ = ("_computed_tokens", "_prompt_tokens", "_view")

    def __init__(self, view: ReplicaView, prompt_tokens: int, hit_tokens: int) -> None:
        self._view = view
        self._prompt_tokens = prompt_tokens
        self._computed_tokens = max(prompt_tokens - hit_tokens, 0)
        view.running_requests += 1
        view.running_tokens += prompt_tokens
        view.waiting_tokens += self._computed_tokens

    def first_token(self) -> None:
        """The prompt has been computed."""
        self._view.waiting_tokens -= self._computed_tokens
        self._computed_tokens = 0

    def release(self) -> None:
        """The request has ended, however."""
        view = self._view
        view.waiting_tokens -= self._computed_tokens
        self._computed_tokens = 0
        view.running_requests -= 1
        view.running_tokens -= self._prompt_tokens
