"""What a policy is asked and what it answers; it sees these records and nothing else.

A replica's ``slot`` is a small number that is its own for as long as it is in the fleet: its bit in
the index's masks, its place in ``hit_tokens``.

Each request has one of each of them, so they are classes as plain as can be: a named tuple or a
frozen dataclass takes twenty times as long to make where this is compiled.
"""

from collections.abc import Sequence
from typing import Final, Literal, Protocol

Reason = Literal[
    "only",
    "turn",
    "chance",
    "load",
    "prefix",
    "affinity",
    "hash",
    "key",
    "key_load",
    "key_failover",
]
"""Why a replica was taken: it was the only one; its turn; drawn; least loaded; for what it holds;
for the caller's session; by the prompt's hash; as the home of the caller's key; in place of that
home, which was too busy, or could not be used."""

ElsewhereBecause = Literal["load", "failover", "ignorance"]
"""Why tokens that another replica held were computed: it was too busy or the policy looks at other
things; it could not be used; nobody knew."""


class RoutedRequest:
    """One request as far as routing cares.

    ``turn`` counts the requests to this model before it: it settles ties, and chance is a function
    of it. ``hit_tokens`` has for each slot how many leading prompt tokens that replica is believed
    to hold. ``prefix`` is the key of the prompt's first blocks; it stands on the root key, so that
    two salts never meet, and is empty where there is none. ``home`` is the slot that took the last
    request of the same session (the caller's, its ``prompt_cache_key``, else the same ``prefix``),
    None if there was none. ``requests_per_s`` is how fast requests to this model come at present.
    ``prompt`` is whatever the asker wants to find again; no policy looks at it. ``key`` is a digest
    of what the caller named to keep its requests together, empty if nothing was.
    """

    __slots__ = (
        *("hit_tokens", "home", "id", "key", "model", "prefix", "prompt", "prompt_tokens"),
        *("requests_per_s", "tenant", "turn"),
    )

    def __init__(
        self,
        request_id: str,
        model: str,
        tenant: str,
        turn: int,
        prompt_tokens: int,
        hit_tokens: Sequence[int],
        prefix: bytes = b"",
        home: int | None = None,
        requests_per_s: float = 0.0,
        prompt: object = None,
        key: bytes = b"",
    ) -> None:
        self.id: Final = request_id
        self.model: Final = model
        self.tenant: Final = tenant
        self.turn: Final = turn
        self.prompt_tokens: Final = prompt_tokens
        self.hit_tokens: Final = hit_tokens
        self.prefix: Final = prefix
        self.home: Final = home
        self.requests_per_s: Final = requests_per_s
        self.prompt: Final = prompt
        self.key: Final = key


class ReplicaView:
    """One replica as it is now: kept up to date by the proxy or the simulation, read by policies.

    ``waiting_tokens``: prompt tokens promised to it that it has to compute before a new request's
    turn comes; a request's are counted before it is sent and end with its first token.
    ``running_tokens``: all tokens of the requests it has, cached ones too, until they end.
    ``prefill_tokens_per_s`` is measured; ``capacity_tokens`` is what its cache holds, None if
    nobody said. ``eligible``: serves the model, healthy, not draining, below its limits.
    """

    __slots__ = (
        *("capacity_tokens", "eligible", "id", "prefill_tokens_per_s", "running_requests"),
        *("running_tokens", "slot", "waiting_tokens"),
    )

    def __init__(
        self,
        replica_id: str,
        slot: int,
        eligible: bool = True,
        running_requests: int = 0,
        running_tokens: int = 0,
        waiting_tokens: float = 0.0,
        prefill_tokens_per_s: float = 4000.0,
        capacity_tokens: int | None = None,
    ) -> None:
        self.id = replica_id
        self.slot: Final = slot
        self.eligible = eligible
        self.running_requests = running_requests
        self.running_tokens = running_tokens
        self.waiting_tokens = waiting_tokens
        self.prefill_tokens_per_s = prefill_tokens_per_s
        self.capacity_tokens = capacity_tokens

    @property
    def wait_s(self) -> float:
        """Seconds until it could begin with a new prompt."""
        return self.waiting_tokens / self.prefill_tokens_per_s


Choice = tuple[ReplicaView, Reason]
"""What a policy answers: where, and why."""


class Policy(Protocol):
    """Where a request goes. Pure: the same question has the same answer, whoever asks."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        ...

    @property
    def looks_at_hits(self) -> bool:
        """Whether it goes by what replicas hold."""
        ...

    @property
    def looks_at_prompt(self) -> bool:
        """Whether it goes by anything of a request but its turn."""
        ...

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> Choice:
        """One of ``replicas``: at least two, all of them eligible."""
        ...


class Decision:
    """A choice, and what it cost: the best that any replica of the fleet would have reused.

    ``elsewhere_tokens`` are prompt tokens that ``elsewhere`` holds and the chosen one does not.
    """

    __slots__ = (
        *("elsewhere", "elsewhere_because", "elsewhere_tokens", "hit_tokens", "policy"),
        *("reason", "replica"),
    )

    def __init__(
        self,
        replica: ReplicaView,
        policy: str,
        reason: Reason,
        hit_tokens: int,
        elsewhere_tokens: int = 0,
        elsewhere: str = "",
        elsewhere_because: ElsewhereBecause | Literal[""] = "",
    ) -> None:
        self.replica: Final = replica
        self.policy: Final = policy
        self.reason: Final = reason
        self.hit_tokens: Final = hit_tokens
        self.elsewhere_tokens: Final = elsewhere_tokens
        self.elsewhere: Final = elsewhere
        self.elsewhere_because: Final = elsewhere_because

    @property
    def header(self) -> str:
        """For example ``replica=b; reason=load; hit=512; elsewhere=1024@a; because=load``."""
        told = f"replica={self.replica.id}; reason={self.reason}; hit={self.hit_tokens}"
        if not self.elsewhere_tokens:
            return told
        return (
            f"{told}; elsewhere={self.elsewhere_tokens}@{self.elsewhere}; "
            f"because={self.elsewhere_because}"
        )
