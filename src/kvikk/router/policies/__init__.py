"""The routing policies by name. The last one is the default: it wins on the traces."""

from collections.abc import Mapping

from kvikk.router.policies.by_hash import Affinity, ConsistentHash
from kvikk.router.policies.by_load import LeastRequests, LeastTokens, PowerOfTwo
from kvikk.router.policies.by_prefix import LongestPrefix
from kvikk.router.policies.by_turn import RandomChoice, RoundRobin
from kvikk.router.policies.weighted import Weighted
from kvikk.router.records import Policy

POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        RoundRobin(),
        RandomChoice(),
        LeastRequests(),
        LeastTokens(),
        PowerOfTwo(),
        ConsistentHash(),
        Affinity(),
        LongestPrefix(),
        Weighted(),
    )
}
DEFAULT_POLICY = "weighted"
