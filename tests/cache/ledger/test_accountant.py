"""One claim a cause, on prompts that a person can follow. Blocks of 4 tokens, letters as tokens."""

import random
import tracemalloc

import pytest

from kvikk.cache.keys import KeyChain, root_key
from kvikk.cache.ledger.accountant import Accountant
from kvikk.cache.ledger.records import Cause, Ledger, Span, rates
from kvikk.cache.ledger.roots import Root
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import GroupSpec


class Cache:
    def __init__(
        self, *num_blocks: int, block_size: int = 4, window: int | None = None, **options: int
    ) -> None:
        self.now_s = 0.0
        windows = [None, *[window] * (len(num_blocks) - 1)]
        self.accountant = Accountant(block_size, windows, clock=lambda: self.now_s, **options)
        specs = [GroupSpec(num_blocks[0]), *(GroupSpec(n, window) for n in num_blocks[1:])]
        self.manager = CacheManager(specs, block_size, on_event=self.accountant.hear)
        self.size = block_size
        self.count = 0

    def admit(self, text: str, salt: bytes = b"", adapter: bytes = b"") -> tuple[int, Ledger]:
        number, self.count = self.count, self.count + 1
        key = root_key(
            model=b"m",
            block_size=self.size,
            kv_dtype="f32",
            numerics="n",
            adapter=adapter,
            salt=salt,
        )
        self.tokens = [ord(letter) for letter in text]
        self.keys = KeyChain(key, self.size, self.tokens).keys
        match = self.manager.match(self.keys, len(text))
        self.manager.allocate(number, match, len(text) - match.num_tokens)
        ledger = self.accountant.open(
            number,
            self.tokens,
            self.keys,
            Root(key, b"m", adapter, "f32", "n", salt),
            num_prompt_tokens=len(text),
            hit_tokens=match.num_tokens,
            computing=lambda key: self.manager.computing(key, besides=number),
        )
        return number, ledger

    def run(self, text: str, salt: bytes = b"", adapter: bytes = b"") -> Ledger:
        number, ledger = self.admit(text, salt, adapter)
        self.manager.commit(number, len(text), self.keys)
        self.manager.free(number)
        self.accountant.close(number)
        return ledger


def told(ledger: Ledger) -> list[tuple[str, int]]:
    return [(span.cause.value, span.num_tokens) for span in ledger.spans]


def test_a_first_prompt_is_new_and_its_last_block_a_tail() -> None:
    assert told(Cache(9).run("abcdefghij")) == [("new", 8), ("tail", 2)]


def test_a_tail_is_what_no_hit_could_reach_since_one_token_must_run() -> None:
    cache = Cache(9)
    cache.run("abcdefgh")
    assert told(cache.run("abcdefgh")) == [("hit.device", 4), ("tail", 4)]


def test_a_hit_names_who_computed_each_block() -> None:
    cache = Cache(9)
    cache.run("abcdX")
    cache.run("abcdefghX")
    (first, second, _) = cache.run("abcdefghY").spans
    assert (first.detail.sequence, second.detail.sequence) == (0, 1)


def test_a_short_shared_beginning_is_lost_to_the_blocks_size() -> None:
    cache = Cache(9)
    cache.run("abcdefghX")
    ledger = cache.run("abcdefxyzzz")
    assert told(ledger) == [("hit.device", 4), ("partial", 2), ("new", 2), ("tail", 3)]
    assert ledger.spans[1].detail.sequence == 0


def test_what_another_request_computes_at_that_moment_is_in_flight() -> None:
    cache = Cache(9)
    owner, _ = cache.admit("abcdefghX")
    _, ledger = cache.admit("abcdefghY")
    assert told(ledger) == [("in_flight", 8), ("tail", 1)]
    assert ledger.spans[0].detail.sequence == owner


def test_an_evicted_prompt_says_for_whom_when_and_how_much_more_would_have_kept_it() -> None:
    cache = Cache(5)
    cache.run("abcdefghX")  # 2 blocks stay
    cache.now_s = 5.0
    cache.run("ABCDEFGHX")  # 2 more, and 1 is empty
    cache.run("123456789")  # needs 3
    cache.now_s = 8.0
    ledger = cache.run("abcdefghX")
    assert told(ledger) == [("evicted", 8), ("tail", 1)]
    detail = ledger.spans[0].detail
    assert (detail.seconds_ago, detail.sequence) == (3.0, 2)
    kept = Cache(5 + (detail.more_blocks or 0))
    for text in ("abcdefghX", "ABCDEFGHX", "123456789"):
        kept.run(text)
    assert told(kept.run("abcdefghX"))[0] == ("hit.device", 8)


def test_a_reset_is_told_apart_from_eviction() -> None:
    cache = Cache(9)
    cache.run("abcdefghX")
    cache.manager.reset()
    ledger = cache.run("abcdefghX")
    assert told(ledger) == [("expired", 8), ("tail", 1)]
    assert ledger.spans[0].detail.part == "reset"


def test_another_adapter_changes_all_and_is_named() -> None:
    cache = Cache(9)
    cache.run("abcdefghX")
    ledger = cache.run("abcdefghX", adapter=b"lora")
    assert told(ledger) == [("changed", 8), ("tail", 1)]
    assert ledger.spans[0].detail.part == "adapter"


def test_another_tenants_prompt_is_told_to_the_operator_only() -> None:
    cache = Cache(9)
    cache.run("abcdefghX", salt=b"one")
    ledger = cache.run("abcdefghX", salt=b"two")
    assert told(ledger) == [("isolated", 8), ("tail", 1)]
    alone = Cache(9)
    alone.run("something", salt=b"two")
    assert ledger.own_spans == Cache(9).run("abcdefghX", salt=b"two").spans


@pytest.mark.parametrize("clock", ["9:59", "10:01", "9:59:58 PM"])
def test_a_clock_in_front_moves_everything_behind_it_whatever_its_length(clock: str) -> None:
    cache, rest = Cache(90), " you are a helpful assistant, here is the handbook."
    cache.run("8:07" + rest)
    ledger = cache.run(clock + rest)
    spans = {span.cause: span for span in ledger.spans}
    assert spans[Cause.MOVED].start == len(clock)
    assert spans[Cause.MOVED].stop >= len(clock + rest) - 4
    detail = spans[Cause.MOVED].detail
    assert "".join(map(chr, detail.value)) == clock
    assert "".join(map(chr, detail.seen_value)) == "8:07"


def test_a_run_shorter_than_a_block_has_not_moved() -> None:
    cache = Cache(90)
    cache.run("aaaaXYZbbbbcccc")
    assert told(cache.run("ZZXYZQQQQ")) == [("new", 8), ("tail", 1)]


def test_a_text_that_repeats_itself_is_one_run() -> None:
    cache = Cache(900)
    cache.run("a" * 400)
    ledger = cache.run("b" + "a" * 400)
    assert told(ledger) == [("new", 1), ("moved", 399), ("tail", 1)]


def test_a_prefix_without_its_window_is_lost_to_the_window_group() -> None:
    cache = Cache(60, 8, window=8)
    cache.run("abcdefghijklX")
    for letter in "123":  # prompts that push the window's blocks out, and none of the others
        cache.run(letter * 12)
    ledger = cache.run("abcdefghijklX")
    assert ledger.totals() == {Cause.TAIL: 1, Cause.EVICTED: 12}
    assert {span.detail.group for span in ledger.spans} == {1, None}


def test_prompts_and_salts_without_end_leave_no_more_than_the_memory_given() -> None:
    given_bytes, generator = 2**19, random.Random(0)
    cache = Cache(64, block_size=16, memory_bytes=given_bytes)
    tracemalloc.start()
    try:
        for round_ in range(300):
            text = "".join(chr(generator.randrange(1, 9999)) for _ in range(400))
            cache.run(text, salt=str(round_).encode())
            if round_ == 20:
                first = tracemalloc.get_traced_memory()[0]
        grown = tracemalloc.get_traced_memory()[0] - first
    finally:
        tracemalloc.stop()
    assert grown < given_bytes


def test_spans_that_leave_a_gap_or_overlap_are_refused() -> None:
    hit, tail = Span(0, 4, Cause.HIT_DEVICE), Span(4, 6, Cause.TAIL)
    assert Ledger(6, (hit, tail)).totals() == {Cause.HIT_DEVICE: 4, Cause.TAIL: 2}
    for spans in [(hit,), (tail,), (hit, Span(3, 6, Cause.TAIL)), (hit, Span(5, 6, Cause.TAIL))]:
        with pytest.raises(AssertionError):
            Ledger(6, spans)


def test_rates_are_of_tokens() -> None:
    totals = {Cause.HIT_DEVICE: 50, Cause.EVICTED: 20, Cause.MOVED: 10, Cause.NEW: 20}
    result = rates(totals)
    assert result.achieved == 0.5
    assert result.attainable_by_operator == 0.7
    assert result.attainable_by_author == 0.8
