"""One decision: a key's home, else the policy's choice; and what it costs."""

from collections.abc import Collection, Sequence

from kvikk.errors import BusyError
from kvikk.router.policies.by_key import at_home
from kvikk.router.records import (
    Decision,
    ElsewhereBecause,
    Policy,
    ReplicaView,
    RoutedRequest,
)


def decide(
    policy: Policy,
    request: RoutedRequest,
    replicas: Sequence[ReplicaView],
    tried: Collection[int] = (),
) -> Decision:
    """Ask ``policy`` about the eligible replicas, and look at what the others would have reused.

    A request with a key is not the policy's: it goes to where its key is at home.
    ``tried`` are slots that have failed this request already. BusyError if nobody is eligible.
    """
    eligible = [one for one in replicas if one.eligible and one.slot not in tried]
    if not eligible:
        raise BusyError(f"no replica of {request.model!r} can take a request now")
    if request.key and len(replicas) > 1:
        slots = {one.slot for one in eligible}
        replica, reason = at_home(request, replicas, slots, policy.looks_at_hits)
    elif len(eligible) == 1:
        replica, reason = eligible[0], "only"
    else:
        replica, reason = policy.choose(request, eligible)
    hits = request.hit_tokens
    hit = hits[replica.slot]
    if hit == max(hits):
        return Decision(replica, policy.name, reason, hit)
    best = max(replicas, key=lambda one: hits[one.slot])
    lost = hits[best.slot] - hit
    if lost <= 0:
        return Decision(replica, policy.name, reason, hit)
    usable = max(hits[one.slot] for one in eligible)
    # Where an eligible replica held as much, it was the policy's choice; else there was none.
    because: ElsewhereBecause = "load" if usable == hits[best.slot] else "failover"
    return Decision(replica, policy.name, reason, hit, lost, best.id, because)
