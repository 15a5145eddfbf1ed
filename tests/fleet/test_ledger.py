"""The ledger across machines, through losses, doubles, delays, deaths and restarts."""

import json
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)
from prometheus_client.parser import text_string_to_metric_families

from kvikk.fleet.ledger.books import FleetLedger
from kvikk.fleet.ledger.figures import exposition, ledger_json
from kvikk.fleet.ledger.outbox import Outbox
from kvikk.fleet.ledger.records import (
    LEFT,
    LOST,
    REFUSED,
    Ask,
    Batch,
    Elsewhere,
    Receipt,
    Settled,
    scattered,
)
from kvikk.wire.ledger import LedgerSpan


def record(attempt: str, **by_cause: int) -> Settled:
    """Spans in the order of ``by_cause``; ``hit`` is short for the pool's."""
    spans, start = [], 0
    for cause, tokens in by_cause.items():
        spans.append(LedgerSpan(start, start + tokens, "hit.device" if cause == "hit" else cause))
        start += tokens
    return Settled(attempt, start, tuple(spans))


def opened(books: FleetLedger, replica: str, tokens: int, *more: object) -> str:
    attempt = books.mint()
    books.open(attempt, replica, tokens, *more)
    return attempt


def exchange(books: FleetLedger, *outboxes: Outbox) -> None:
    """Ask and answer until nothing is owed that anybody has."""
    for _ in range(100):
        ask = books.ask()
        for outbox in outboxes:
            books.receive(outbox.collect(ask))
    assert all(len(outbox) == 0 for outbox in outboxes)


class Replica:
    """A name, its processes one after the other, and what the present one has to do."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outbox = Outbox(name, most_records=6)
        self.running: list[str] = []


class Machine(RuleBasedStateMachine):
    """Replicas and messages in the hand of chance; the truth is a list of what happened."""

    messages = Bundle("messages")

    @initialize()
    def start(self) -> None:
        self.books = FleetLedger("test")
        self.stranger = FleetLedger("stranger")
        self.replicas = [Replica("a"), Replica("b"), Replica("c")]
        self.sent: dict[str, int] = {}  # attempt: prompt tokens
        self.where: dict[str, str] = {}
        self.on_its_way: list[str] = []  # sent, and not arrived
        self.ended: dict[str, bool] = {}  # attempt: superseded
        self.not_sent: dict[str, str] = {}
        self.told: dict[str, Settled] = {}  # what replicas settled
        self.arrived: set[str] = set()  # of these, what the books were handed

    # The ingress.

    @rule(replica=st.integers(0, 2), tokens=st.integers(1, 9))
    def send(self, replica: int, tokens: int) -> None:
        name = self.replicas[replica].name
        attempt = opened(self.books, name, tokens)
        assert attempt not in self.sent
        self.sent[attempt] = tokens
        self.where[attempt] = name
        self.on_its_way.append(attempt)

    @rule(data=st.data(), superseded=st.booleans())
    def end(self, data: st.DataObject, superseded: bool) -> None:
        left = [one for one in self.sent if one not in self.ended]
        if left:
            attempt = data.draw(st.sampled_from(left))
            self.ended[attempt] = superseded
            self.books.ended(attempt, superseded=superseded)

    @rule(tokens=st.integers(1, 9), cause=st.sampled_from([LEFT, REFUSED]))
    def turn_away(self, tokens: int, cause: str) -> None:
        self.books.turn_away(tokens, cause)
        self.not_sent[f"turned away {len(self.not_sent)}"] = cause
        self.sent[f"turned away {len(self.not_sent)}"] = tokens
        self.ended[f"turned away {len(self.not_sent)}"] = False
        self.told[f"turned away {len(self.not_sent)}"] = Settled.whole("", tokens, cause)
        self.arrived.add(f"turned away {len(self.not_sent)}")

    @rule(data=st.data(), superseded=st.booleans(), cause=st.sampled_from([LEFT, REFUSED]))
    def give_up_before_sending(self, data: st.DataObject, superseded: bool, cause: str) -> None:
        left = [one for one in self.on_its_way if one not in self.ended]
        if left:
            attempt = data.draw(st.sampled_from(left))
            self.on_its_way.remove(attempt)
            self.ended[attempt] = superseded
            self.told[attempt] = Settled.whole(attempt, self.sent[attempt], cause)
            self.arrived.add(attempt)
            self.books.not_sent(attempt, cause, superseded=superseded)

    @rule(present=st.sets(st.sampled_from(["a", "b", "c"])))
    def look_who_is_there(self, present: set[str]) -> None:
        self.books.fleet(present)

    # Replicas.

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        if self.on_its_way:
            attempt = data.draw(st.sampled_from(self.on_its_way))
            self.on_its_way.remove(attempt)
            replica = self.named(self.where[attempt])
            replica.outbox.began(attempt)
            replica.running.append(attempt)

    @rule(
        target=messages,
        data=st.data(),
        hit=st.integers(0, 9),
        refused=st.booleans(),
        more=st.sampled_from([0, 0, 1]),
    )
    def settle(self, data: st.DataObject, hit: int, refused: bool, more: int) -> object:
        busy = [one for one in self.replicas if one.running]
        if not busy:
            return multiple()
        replica = data.draw(st.sampled_from(busy))
        attempt = data.draw(st.sampled_from(replica.running))
        replica.running.remove(attempt)
        tokens = self.sent[attempt] + more  # the ingress may have guessed
        hit = min(hit, tokens)
        causes = {"hit": hit, "new": tokens - hit}
        settled = (
            Settled.whole(attempt, tokens, REFUSED)
            if refused
            else record(attempt, **{cause: count for cause, count in causes.items() if count})
        )
        self.told[attempt] = settled
        return replica.outbox.settled(settled)

    @rule(replica=st.integers(0, 2))
    def die(self, replica: int) -> None:
        self.replicas[replica] = Replica(self.replicas[replica].name)

    # The network: what is in the bag may be handed over any number of times, in any order.

    @rule(target=messages)
    def ask(self) -> Ask:
        return self.books.ask()

    @rule(target=messages, message=messages, replica=st.integers(0, 2), limit=st.integers(1, 3))
    def deliver(self, message: Ask | Batch, replica: int, limit: int) -> object:
        if isinstance(message, Ask):
            return self.replicas[replica].outbox.collect(message, limit)
        self.hand_over(message)
        return multiple()

    @rule(message=consumes(messages))
    def lose(self, message: Ask | Batch) -> None:
        pass

    @rule(replica=st.integers(0, 2))
    def another_ingress_asks(self, replica: int) -> None:
        batch = self.replicas[replica].outbox.collect(self.stranger.ask())
        assert batch.records == ()
        self.stranger.receive(batch)

    def hand_over(self, batch: Batch) -> None:
        self.arrived |= {settled.attempt for _, settled in batch.records}
        self.books.receive(batch)

    def named(self, name: str) -> Replica:
        return next(one for one in self.replicas if one.name == name)

    # What must hold.

    @invariant()
    def every_token_that_was_sent_is_somewhere(self) -> None:
        totals = self.books.totals()
        superseded = sum(totals.superseded_by_cause.values())
        everywhere = totals.prompt_tokens + superseded + totals.open_tokens
        assert everywhere == sum(self.sent.values()) + totals.corrected_tokens
        known = self.arrived & self.ended.keys()
        more = sum(self.told[one].prompt_tokens - self.sent[one] for one in known)
        assert totals.corrected_tokens == more
        attempts = totals.requests + totals.superseded_attempts + totals.open_attempts
        assert attempts == len(self.sent)
        assert all(tokens > 0 for tokens in totals.by_cause.values())

    @invariant()
    def what_has_arrived_is_booked_once_and_as_it_was_told(self) -> None:
        totals = self.books.totals()
        for superseded, found in ((False, totals.by_cause), (True, totals.superseded_by_cause)):
            expected = self.recount(superseded)
            known = {cause: tokens for cause, tokens in found.items() if cause != LOST}
            assert known == expected

    def recount(self, superseded: bool) -> Counter[str]:
        counts: Counter[str] = Counter()
        for attempt, was_superseded in self.ended.items():
            if attempt in self.arrived and was_superseded == superseded:
                for span in self.told[attempt].spans:
                    counts[span.cause] += span.num_tokens
        return counts

    def teardown(self) -> None:
        """The network holds, everybody finishes: nothing stays open, and lost is what died."""
        if not hasattr(self, "books"):
            return
        for attempt in self.sent:
            if attempt not in self.ended:
                self.ended[attempt] = False
                self.books.ended(attempt)
        for _ in range(10):
            ask = self.books.ask()
            for replica in self.replicas:
                for attempt in replica.running:
                    settled = record(attempt, new=self.sent[attempt])
                    self.told[attempt] = settled
                    replica.outbox.settled(settled)
                replica.running.clear()
                self.hand_over(replica.outbox.collect(ask))
        totals = self.books.totals()
        assert (totals.open_attempts, totals.open_tokens) == (0, 0)
        lost = sum(self.sent[one] for one in self.sent if one not in self.arrived)
        both = Counter(totals.by_cause) + Counter(totals.superseded_by_cause)
        assert both[LOST] == lost
        assert all(len(replica.outbox) == 0 for replica in self.replicas)
        self.every_token_that_was_sent_is_somewhere()
        self.what_has_arrived_is_booked_once_and_as_it_was_told()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


def test_a_record_that_comes_after_the_loss_takes_its_place_once() -> None:
    books, outbox = FleetLedger(), Outbox("a")
    attempt = opened(books, "a", 10)
    outbox.began(attempt)
    books.ended(attempt)
    batch = outbox.settled(record(attempt, hit=8, tail=2))
    books.fleet([])
    assert books.totals().by_cause == {LOST: 10}
    for _ in range(3):
        books.receive(batch)
    totals = books.totals()
    assert totals.by_cause == {"hit.device": 8, "tail": 2}
    assert (totals.requests, totals.late, totals.repeated) == (1, 1, 2)


def test_a_replica_that_started_again_knows_nothing_of_what_it_was_sent_before() -> None:
    books = FleetLedger()
    first = Outbox("a")
    told, untold = opened(books, "a", 3), opened(books, "a", 4)
    for attempt in (told, untold):
        first.began(attempt)
        books.ended(attempt)
    books.receive(first.settled(record(told, new=3)))
    first.settled(record(untold, new=4))
    exchange(books, Outbox("a"))
    assert books.totals().by_cause == {"new": 3, LOST: 4}


def test_an_attempt_that_runs_still_is_open_however_often_it_is_asked_for() -> None:
    books, outbox = FleetLedger(), Outbox("a")
    attempt = opened(books, "a", 5)
    outbox.began(attempt)
    books.ended(attempt)  # the client left; the replica has not noticed
    exchange(books, outbox)
    assert books.totals().open_tokens == 5
    outbox.settled(record(attempt, new=5))
    exchange(books, outbox)
    assert books.totals().by_cause == {"new": 5}


def test_a_gap_is_noticed_and_only_what_is_missing_comes_again() -> None:
    books, outbox = FleetLedger(), Outbox("a")
    attempts = [opened(books, "a", 1) for _ in range(5)]
    batches = []
    for attempt in attempts:
        outbox.began(attempt)
        batches.append(outbox.settled(record(attempt, new=1)))
        books.ended(attempt)
    for number, gaps in ((0, 0), (2, 1), (4, 2)):
        books.receive(batches[number])
        assert books.totals().gaps == gaps
    (receipt,) = books.ask().receipts.values()
    assert receipt == Receipt(1, (3, 5))
    again = outbox.collect(books.ask())
    assert [number for number, _ in again.records] == [2, 4]
    books.receive(again)
    assert books.totals().requests == 5
    assert books.totals().repeated == 0


def test_a_record_that_comes_twice_counts_once_and_leaves_nothing_behind() -> None:
    books, outbox = FleetLedger(), Outbox("a")
    attempt = opened(books, "a", 5)
    batch = outbox.settled(record(attempt, new=5))
    for _ in range(3):
        books.receive(batch)  # the ingress has not noticed the end yet
    books.ended(attempt)
    books.receive(batch)
    assert (books.totals().by_cause, books.totals().repeated) == ({"new": 5}, 3)
    assert list(books.ask().receipts.values()) == [Receipt(1)]


def test_what_was_dropped_for_want_of_room_is_lost_and_not_waited_for() -> None:
    books, outbox = FleetLedger(), Outbox("a", most_records=2)
    for _ in range(4):
        attempt = opened(books, "a", 1)
        outbox.began(attempt)
        books.ended(attempt)
        outbox.settled(record(attempt, new=1))
    assert (len(outbox), outbox.dropped) == (2, 2)
    exchange(books, outbox)
    assert books.totals().by_cause == {"new": 2, LOST: 2}
    assert list(books.ask().receipts.values()) == [Receipt(4)]
    assert books.totals().gaps == 0


def test_a_request_counts_once_and_what_was_tried_in_vain_stands_beside_it() -> None:
    books, a, b = FleetLedger(), Outbox("a"), Outbox("b")
    first = opened(books, "a", 7)
    a.began(first)
    books.ended(first, superseded=True)
    second = opened(books, "b", 7, Elsewhere(4, "a", "failover"))
    b.began(second)
    books.receive(b.settled(record(second, hit=2, new=5)))
    books.ended(second)
    books.fleet(["b"])
    totals = books.totals()
    assert totals.by_cause == {"hit.device": 2, "elsewhere": 2, "new": 3}
    assert totals.superseded_by_cause == {LOST: 7}
    assert totals.rates.achieved == 2 / 7
    assert totals.rates.attainable_by_operator == 4 / 7
    shown = ledger_json(books)
    assert shown["rates"]["achieved"] == 2 / 7
    assert json.loads(json.dumps(shown)) == shown
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(exposition(books))
        for sample in family.samples
    }
    assert samples["kvikk_fleet_prompt_tokens", "elsewhere"] == 2
    assert samples["kvikk_fleet_superseded_prompt_tokens", "lost"] == 7
    assert samples["kvikk_fleet_requests_total",] == 1
    assert books.by_replica() == {"b": dict(totals.by_cause), "a": {LOST: 7}}


def test_what_another_replica_held_goes_before_what_an_engine_knows_of_itself() -> None:
    spans = record("x", hit=4, partial=2, evicted=4, moved=3, new=5, tail=2).spans
    there = scattered(spans, Elsewhere(15, "b", "load"))
    assert [(one.start, one.stop, one.cause) for one in there] == [
        (0, 4, "hit.device"),
        (4, 6, "partial"),
        (6, 15, "elsewhere"),
        (15, 18, "new"),
        (18, 20, "tail"),
    ]
    assert there[2].detail == {"replica": "b", "because": "load"}
    assert scattered(spans, None) == spans
    assert scattered(spans, Elsewhere(4, "b", "load")) == spans


def test_what_the_ingress_guessed_gives_way_to_what_a_replica_counted() -> None:
    books, outbox = FleetLedger(), Outbox("a")
    for hit in (3, None):
        attempt = opened(books, "a", 5)
        outbox.began(attempt)
        if hit:
            books.receive(outbox.settled(record(attempt, hit=3, new=4)))
        books.ended(attempt)
    assert (books.totals().prompt_tokens, books.totals().open_tokens) == (7, 5)
    books.fleet([])
    totals = books.totals()
    assert totals.by_cause == {"hit.device": 3, "new": 4, LOST: 5}
    assert totals.prompt_tokens == 5 + 5 + totals.corrected_tokens


def test_a_replica_keeps_the_attempts_of_two_ingresses_apart() -> None:
    books, outbox = [FleetLedger("one"), FleetLedger("two")], Outbox("a")
    for number, one in enumerate(books):
        attempt = opened(one, "a", 3 + number)
        outbox.began(attempt)
        outbox.settled(record(attempt, new=3 + number))
        one.ended(attempt)
    for one in books:
        one.receive(outbox.collect(one.ask()))
        outbox.collect(one.ask())
    assert len(outbox) == 0
    assert [one.totals().by_cause for one in books] == [{"new": 3}, {"new": 4}]


def test_spans_that_do_not_tile_the_prompt_are_no_record() -> None:
    with pytest.raises(AssertionError, match="do not tile 5 tokens"):
        Settled("x", 5, (LedgerSpan(0, 4, "new"),))


def test_a_hundred_thousand_attempts_leave_memory_bounded_and_the_sum_exact() -> None:
    """Of one ingress whose replicas come and go, and that nobody answers for a while."""
    books, other = FleetLedger(), FleetLedger("never asks")
    outbox = Outbox("a0", most_records=100)
    for number in range(100_000):
        if number % 100 == 0:
            outbox = Outbox(f"a{number}", most_records=100)
            books.fleet([outbox.replica])
        attempt = opened(books, outbox.replica, 1)
        outbox.began(attempt)
        batch = outbox.settled(record(attempt, new=1))
        books.ended(attempt)
        outbox.settled(record(opened(other, "a", 1), new=1))
        if number % 3 == 0:
            books.receive(batch)
        assert len(outbox) <= 100
    books.fleet([])
    totals = books.totals()
    assert totals.by_cause == {"new": 33_334, LOST: 66_666}
    assert len(books.by_replica()) <= 257
    assert sum(sum(one.values()) for one in books.by_replica().values()) == 100_000
    assert len(books._received) <= 1024
    assert len(books._lost) <= 1 << 16
