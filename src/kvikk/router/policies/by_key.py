"""A caller's own key keeps its requests together, whatever the policy does with all others.

``prompt_cache_key`` and ``x-session-id`` say that requests belong together. As with hosted APIs a
key has a home, where its requests go under every policy, unless its home cannot take them or would
keep them waiting.
"""

from collections.abc import Container, Sequence

from kvikk.router.policies.by_hash import rendezvous
from kvikk.router.policies.weighted import prefill_weight
from kvikk.router.records import Choice, Reason, ReplicaView, RoutedRequest

# How much sooner another replica has to be, in times of computing the whole prompt. A policy that
# knows what replicas hold finds a key's blocks also where they came to lie while its home was busy;
# on the traces each wait for a home makes it worse, by 1 % of the mean time to first token with a
# tenth and by 13 % with 1. The others find them at home alone. For them it is 2: with 1 they move
# so often, and with 4 wait so long, that one trace or the other gets worse.
_KNOWING, _BLIND = 0.1, 2.0
# No home may have more requests than so many times the mean, and a batch besides: what replicas
# wait for is prompts, and those of one key cost little.
_BOUND, _BATCH_REQUESTS = 2.0, 8


def at_home(
    request: RoutedRequest,
    replicas: Sequence[ReplicaView],
    usable: Container[int],
    looks_at_hits: bool,
) -> Choice:
    """Where the request's key is at home.

    ``replicas`` are all that serve the model, ``usable`` the slots of those that can take it, at
    least one; ``looks_at_hits`` says whether what they hold counts. A key ranks the replicas (see
    ``rendezvous``), and the first that will do is its home. No state is kept: all routers agree as
    far as they see the same, a key goes home again when its replica is back, and no other key moves
    meanwhile.
    """
    ranked = rendezvous(request.key, replicas)
    home = ranked[0]
    able = _not_crowded([one for one in ranked if one.slot in usable])
    own_s = request.prompt_tokens / home.prefill_tokens_per_s
    weight = prefill_weight(request, able) if looks_at_hits else 0.0
    hits = request.hit_tokens

    def cost_s(one: ReplicaView) -> float:
        return one.wait_s - weight * own_s * hits[one.slot] / request.prompt_tokens

    patience = _KNOWING if looks_at_hits else _BLIND
    most_s = min(map(cost_s, able)) + patience * own_s
    taken = next(one for one in able if cost_s(one) <= most_s)
    reason: Reason = "key"
    if home.slot not in usable:
        reason = "key_failover"
    elif taken is not home:
        reason = "prefix" if looks_at_hits and hits[taken.slot] > hits[home.slot] else "key_load"
    return taken, reason


def _not_crowded(replicas: list[ReplicaView]) -> list[ReplicaView]:
    counts = [one.running_requests for one in replicas]
    most = _BOUND * sum(counts) / len(counts) + _BATCH_REQUESTS
    return [one for one in replicas if one.running_requests <= most]
