"""What policies do, as claims; most of them are other routers' defects, turned round."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvikk.errors import BusyError
from kvikk.router.deciding import decide
from kvikk.router.policies import DEFAULT_POLICY, POLICIES
from kvikk.router.policies.by_hash import rendezvous
from kvikk.router.records import ReplicaView, RoutedRequest

SPEED = 1000.0


def fleet(*waiting_tokens: float) -> list[ReplicaView]:
    return [
        ReplicaView(
            f"replica{slot}",
            slot,
            running_requests=round(waiting / 100),
            running_tokens=round(waiting),
            waiting_tokens=waiting,
            prefill_tokens_per_s=SPEED,
        )
        for slot, waiting in enumerate(waiting_tokens)
    ]


def request(
    *hit_tokens: int,
    turn: int = 0,
    prompt_tokens: int = 1000,
    prefix: bytes = b"",
    home: int | None = None,
    requests_per_s: float = 0.0,
    key: bytes = b"",
) -> RoutedRequest:
    rest = prefix, home, requests_per_s, None, key
    return RoutedRequest("id", "model", "tenant", turn, prompt_tokens, hit_tokens, *rest)


def chosen(name: str, asked: RoutedRequest, replicas: list[ReplicaView]) -> int:
    return decide(POLICIES[name], asked, replicas).replica.slot


@pytest.mark.parametrize("name", POLICIES)
@given(
    waiting=st.lists(st.floats(0, 1e6), min_size=1, max_size=6),
    turn=st.integers(0, 10**9),
    data=st.data(),
)
def test_only_eligible_replicas_are_chosen_and_the_same_question_has_the_same_answer(
    name: str, waiting: list[float], turn: int, data: st.DataObject
) -> None:
    replicas = fleet(*waiting)
    for replica in replicas:
        replica.eligible = data.draw(st.booleans())
    tried = data.draw(st.sets(st.integers(0, 5)))
    hits = data.draw(st.lists(st.integers(0, 1000), min_size=6, max_size=6))
    asked = request(
        *hits,
        turn=turn,
        prefix=data.draw(st.binary(max_size=8)),
        home=data.draw(st.none() | st.integers(0, 6)),
        requests_per_s=data.draw(st.floats(0, 1000)),
        key=data.draw(st.just(b"") | st.binary(min_size=32, max_size=32)),
    )
    usable = {one.slot for one in replicas if one.eligible} - tried
    if not usable:
        with pytest.raises(BusyError):
            decide(POLICIES[name], asked, replicas, tried)
        return
    decision = decide(POLICIES[name], asked, replicas, tried)
    assert decision.replica.slot in usable
    again = decide(POLICIES[name], asked, replicas, tried)
    assert (again.replica, again.header) == (decision.replica, decision.header)
    assert decision.hit_tokens == hits[decision.replica.slot]
    best = max(hits[one.slot] for one in replicas)
    assert decision.hit_tokens + decision.elsewhere_tokens == best


@pytest.mark.parametrize("name", POLICIES)
def test_ties_rotate(name: str) -> None:
    counts = Counter(
        chosen(name, request(0, 0, 0, 0, turn=turn, prefix=b"%d" % turn * 4), fleet(0, 0, 0, 0))
        for turn in range(400)
    )
    assert len(counts) == 4
    assert min(counts.values()) > 60


@pytest.mark.parametrize(
    "name", ["least_requests", "least_tokens", "affinity", "longest_prefix", "weighted"]
)
def test_a_miss_goes_by_load(name: str) -> None:
    assert {
        chosen(name, request(0, 0, 0, turn=turn), fleet(500, 100, 900)) for turn in range(9)
    } == {1}


def test_an_unhealthy_idle_replica_does_not_make_the_others_look_overloaded() -> None:
    replicas = fleet(0, 3000, 3100)
    replicas[0].eligible = False
    assert chosen("longest_prefix", request(0, 0, 900), replicas) == 2
    assert chosen("weighted", request(0, 0, 900), replicas) == 2


def test_imbalance_does_not_discard_affinity_altogether() -> None:
    """One idle replica that knows nothing, one a little busier that knows it all."""
    for name in ("longest_prefix", "weighted"):
        assert chosen(name, request(0, 900, 0), fleet(0, 300, 5000)) == 1


def test_the_longest_prefix_is_left_where_its_wait_costs_more_than_it_saves() -> None:
    for name in ("longest_prefix", "weighted"):
        assert chosen(name, request(0, 900), fleet(0, 5000)) == 0


def test_a_faster_replica_s_wait_is_shorter() -> None:
    replicas = fleet(1000, 3000)
    replicas[1].prefill_tokens_per_s = 10 * SPEED
    for name in ("least_tokens", "weighted"):
        assert chosen(name, request(0, 0), replicas) == 1


def test_a_busy_fleet_waits_longer_for_what_it_need_not_compute() -> None:
    asked, replicas = request(0, 900), fleet(1000, 2500)
    assert chosen("weighted", asked, replicas) == 0
    assert chosen("weighted", request(*asked.hit_tokens, requests_per_s=2.0), replicas) == 1


def test_sessions_stay_and_move_only_if_their_replica_cannot_be_used() -> None:
    replicas = fleet(0, 9000, 0)
    assert chosen("affinity", request(0, 0, 0, home=1), replicas) == 1
    replicas[1].eligible = False
    assert chosen("affinity", request(0, 0, 0, home=1), replicas) != 1


def test_a_replica_that_leaves_moves_no_prefix_but_its_own() -> None:
    replicas = fleet(0, 0, 0, 0)
    for number in range(500):
        before = rendezvous(b"%08d" % number, replicas)
        assert rendezvous(b"%08d" % number, replicas[::-1]) == before
        after = rendezvous(b"%08d" % number, [one for one in replicas if one is not before[1]])
        assert after == [one for one in before if one is not before[1]]


def test_one_hot_prefix_does_not_pile_up_on_one_replica() -> None:
    replicas = fleet(0, 0, 0, 0)
    for turn in range(100):
        asked = request(0, 0, 0, 0, turn=turn, prefix=b"hot hot hot")
        decide(POLICIES["consistent_hash"], asked, replicas).replica.waiting_tokens += 1000
    work = [one.waiting_tokens for one in replicas]
    assert max(work) - min(work) <= 3000


def test_elsewhere_is_load_where_the_holder_could_be_used_and_failover_where_not() -> None:
    replicas = fleet(0, 90_000)
    decision = decide(POLICIES["weighted"], request(100, 900), replicas)
    assert (decision.hit_tokens, decision.elsewhere_tokens) == (100, 800)
    assert (decision.elsewhere, decision.elsewhere_because) == ("replica1", "load")
    assert decision.header == (
        "replica=replica0; reason=prefix; hit=100; elsewhere=800@replica1; because=load"
    )
    replicas[1].eligible = False
    decision = decide(POLICIES["weighted"], request(100, 900), replicas)
    assert (decision.reason, decision.elsewhere_because) == ("only", "failover")
    retried = decide(POLICIES["weighted"], request(100, 900), fleet(0, 0), tried={1})
    assert retried.elsewhere_because == "failover"


def keyed(key: bytes, *hit_tokens: int, turn: int = 0) -> RoutedRequest:
    return request(*hit_tokens, turn=turn, key=key)


def home(key: bytes, count: int) -> int:
    return rendezvous(key, fleet(*[0] * count))[0].slot


@pytest.mark.parametrize("name", POLICIES)
def test_a_key_stays_at_its_home_under_every_policy_and_requests_without_one_do_not_notice(
    name: str,
) -> None:
    zeros = [0] * 7
    for turn in range(20):
        decision = decide(POLICIES[name], keyed(b"the key!", *zeros, turn=turn), fleet(*zeros))
        assert decision.replica.slot == home(b"the key!", 7)
        assert decision.reason == "key"
        plain = request(*zeros, turn=turn)
        direct = POLICIES[name].choose(plain, fleet(*zeros))[0].slot
        assert chosen(name, plain, fleet(*zeros)) == direct


def test_keys_are_spread_over_the_fleet() -> None:
    counts = Counter(home(number.to_bytes(32, "big")[::-1], 8) for number in range(4000))
    # Five standard deviations around an eighth.
    assert all(abs(count - 500) < 5 * 20.9 for count in counts.values())


def test_a_key_moves_while_its_home_cannot_be_used_and_says_why() -> None:
    policy, asked = POLICIES["round_robin"], keyed(b"the key!", 0, 0, 0, 0)
    first, second = (one.slot for one in rendezvous(b"the key!", fleet(0, 0, 0, 0))[:2])
    replicas = fleet(0, 0, 0, 0)
    replicas[first].eligible = False
    for decision in (
        decide(policy, asked, replicas),
        decide(policy, asked, fleet(0, 0, 0, 0), tried={first}),
    ):
        assert (decision.replica.slot, decision.reason) == (second, "key_failover")
    for one in replicas:
        one.eligible = one.slot == second
    assert decide(policy, asked, replicas).reason == "key_failover"
    # Where all are busy alike it stays.
    assert decide(policy, asked, fleet(*[90_000] * 4)).reason == "key"


@pytest.mark.parametrize(("name", "patience"), [("round_robin", 2000), ("weighted", 100)])
def test_a_key_leaves_a_home_that_is_too_busy_and_says_so(name: str, patience: int) -> None:
    asked = keyed(b"the key!", 0, 0, 0, 0)
    first, second = (one.slot for one in rendezvous(b"the key!", fleet(0, 0, 0, 0))[:2])
    busy = fleet(0, 0, 0, 0)
    busy[first].waiting_tokens, busy[first].running_requests = patience, 16
    assert decide(POLICIES[name], asked, busy).reason == "key"
    busy[first].waiting_tokens += 1
    decision = decide(POLICIES[name], asked, busy)
    assert (decision.replica.slot, decision.reason) == (second, "key_load")
    busy[first].waiting_tokens, busy[first].running_requests = 0, 17
    assert decide(POLICIES[name], asked, busy).reason == "key_load"


def test_who_knows_what_replicas_hold_finds_a_key_s_blocks_away_from_home() -> None:
    first, second = (one.slot for one in rendezvous(b"the key!", fleet(0, 0, 0))[:2])
    hits = [0, 0, 0]
    hits[second] = 900
    for name, slot, reason in (("weighted", second, "prefix"), ("least_tokens", first, "key")):
        decision = decide(POLICIES[name], keyed(b"the key!", *hits), fleet(0, 0, 0))
        assert (decision.replica.slot, decision.reason) == (slot, reason)


@pytest.mark.parametrize(("name", "ahead"), [("weighted", 100), ("random", 2000)])
def test_a_hot_key_does_not_pile_up_on_its_home(name: str, ahead: int) -> None:
    replicas = fleet(0, 0, 0, 0)
    for turn in range(400):
        taken = decide(POLICIES[name], keyed(b"the key!", 0, 0, 0, 0, turn=turn), replicas)
        taken.replica.waiting_tokens += 1000
        taken.replica.running_requests += 1
    work = [one.waiting_tokens for one in replicas]
    assert max(work) - min(work) <= ahead + 1000


def test_random_and_power_of_two_are_fair() -> None:
    for name in ("random", "power_of_two"):
        counts = Counter(
            chosen(name, request(0, 0, 0, 0, 0, turn=turn), fleet(0, 0, 0, 0, 0))
            for turn in range(5000)
        )
        # Five standard deviations around a fifth.
        assert all(abs(count - 1000) < 5 * 28.3 for count in counts.values())


def test_power_of_two_never_takes_the_busiest_of_many() -> None:
    slots = {
        chosen("power_of_two", request(0, 0, 0, turn=turn), fleet(100, 50, 900))
        for turn in range(200)
    }
    assert slots == {0, 1}


def test_policies_are_frozen_and_the_default_is_one_of_them() -> None:
    assert DEFAULT_POLICY in POLICIES
    for policy in POLICIES.values():
        assert policy == replace(policy)  # type: ignore[type-var]
        with pytest.raises(AttributeError):
            policy.name = "another"  # type: ignore[misc]
