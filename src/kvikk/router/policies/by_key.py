"""A caller's own key keeps its requests together, whatever the policy does with all others.

``prompt_cache_key`` and ``x-session-id`` say that requests belong together. As with hosted APIs
that is no hint among others: a key has a home, and leaves it only for what its home cannot do.
"""

from collections.abc import Container, Sequence

from kvikk.router.policies.by_hash import rendezvous
from kvikk.router.policies.by_load import waits
from kvikk.router.policies.ties import least
from kvikk.router.records import Choice, Reason, ReplicaView, RoutedRequest

# A home is too busy above so many times the mean, and above what it may be ahead of the idlest:
# the request's own work, and so many requests as an engine answers in one batch.
_BOUND = 1.25
_BATCH_REQUESTS = 8


def at_home(
    request: RoutedRequest, replicas: Sequence[ReplicaView], usable: Container[int]
) -> Choice:
    """Where the request's key is at home.

    ``replicas`` are all that serve the model, ``usable`` the slots of those that can take it, at
    least one. A key ranks the replicas (see ``rendezvous``), and its home is the first that can be
    used and is not too busy. No state is kept: all routers agree as far as they see the same
    replicas, a key goes home again when its replica is back, and no other key moves meanwhile.
    """
    ranked = rendezvous(request.key, replicas)
    able = [one for one in ranked if one.slot in usable]
    moved: Reason = "key_load" if able[0] is ranked[0] else "key_failover"
    mean_wait_s = sum(one.wait_s for one in able) / len(able)
    least_wait_s = min(one.wait_s for one in able)
    mean_requests = sum(one.running_requests for one in able) / len(able)
    least_requests = min(one.running_requests for one in able)
    for replica in able:
        own_s = request.prompt_tokens / replica.prefill_tokens_per_s
        most_requests = max(_BOUND * mean_requests, least_requests + _BATCH_REQUESTS)
        if (
            replica.wait_s <= max(_BOUND * mean_wait_s, least_wait_s + own_s)
            and replica.running_requests <= most_requests
        ):
            return Choice(replica, "key" if replica is ranked[0] else moved)
    return Choice(least(able, request.turn, waits), moved)
