"""KV events: what we write is what vLLM's own definitions read, and the other way round."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvikk.errors import RequestError
from kvikk.wire.kv_events import (
    END_OF_REPLAY,
    KvBatch,
    KvCleared,
    KvRemoved,
    KvStored,
    decode_batch,
    decode_sequence,
    encode_batch,
    encode_sequence,
)


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    """vLLM's batch: an array."""

    ts: float
    events: list
    data_parallel_rank: int | None = None


class MapEvent(msgspec.Struct, omit_defaults=True, tag=True):
    """Its events since 2026: maps."""


class BlockStored(MapEvent, tag="BlockStored"):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None


class BlockRemoved(MapEvent, tag="BlockRemoved"):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(MapEvent, tag="AllBlocksCleared"):
    pass


AnyEvent = BlockStored | BlockRemoved | AllBlocksCleared


class OurBatch(msgspec.Struct):
    ts: float
    events: list[AnyEvent]


hashes = st.one_of(st.integers(0, 2**64 - 1), st.binary(min_size=8, max_size=32))


@st.composite
def stored(draw: st.DrawFn) -> KvStored:
    size, count = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    window = draw(st.none() | st.integers(1, 999))
    return KvStored(
        tuple(draw(st.lists(hashes, min_size=count, max_size=count))),
        draw(st.none() | hashes),
        draw(st.lists(st.integers(0, 2**32 - 1), min_size=count * size, max_size=count * size)),
        size,
        draw(st.text(max_size=5)),
        draw(st.sampled_from([None, "GPU", "CPU"])),
        tuple(draw(st.lists(st.none() | st.lists(st.text(max_size=3)), max_size=3))),
        draw(st.none() | st.integers(0, 3)),
        window,
        window is None,
    )


events = st.one_of(
    stored(),
    st.builds(KvRemoved, st.lists(hashes).map(tuple), st.sampled_from([None, "GPU"]), st.none()),
    st.just(KvCleared()),
)


@given(st.lists(events), st.none() | st.integers(0, 7))
def test_what_is_written_is_read_as_it_was(told: list, rank: int | None) -> None:
    batch = KvBatch(12.5, tuple(told), rank)
    assert decode_batch(encode_batch(batch)) == batch


@given(stored())
def test_vllm_s_own_records_read_what_is_written(told: KvStored) -> None:
    payload = encode_batch(KvBatch(1.0, (told, KvRemoved((b"h",), "GPU"), KvCleared())))
    read = msgspec.msgpack.decode(payload, type=OurBatch)
    first = read.events[0]
    assert isinstance(first, BlockStored)
    assert first.token_ids == list(told.token_ids)
    assert first.block_hashes == list(told.block_hashes)
    assert isinstance(read.events[1], BlockRemoved)
    assert isinstance(read.events[2], AllBlocksCleared)


STORED = BlockStored(
    [b"a" * 32, 7],
    None,
    [1, 2, 3, 4],
    2,
    None,
    "GPU",
    "tuned",
    [["tuned", "salt"], None],
    0,
    "full_attention",
    None,
    "LOCAL",
)


@pytest.mark.parametrize("form", ["map", "array"])
@pytest.mark.parametrize("outer", ["map", "array"])
def test_both_levels_may_be_an_array_or_a_map(form: str, outer: str) -> None:
    told = [STORED, BlockRemoved([7], "GPU", 0), AllBlocksCleared()]
    if form == "array":
        told = [[type(one).__name__, *msgspec.structs.astuple(one)] for one in told]
    batch = Batch(3.5, told, 2)
    value = batch if outer == "array" else msgspec.structs.asdict(batch)
    assert decode_batch(msgspec.msgpack.encode(value)) == KvBatch(
        3.5,
        (
            KvStored(
                (b"a" * 32, 7),
                None,
                [1, 2, 3, 4],
                2,
                "tuned",
                "GPU",
                (["tuned", "salt"], None),
                0,
            ),
            KvRemoved((7,), "GPU", 0),
            KvCleared(),
        ),
        2,
    )


def test_an_old_sender_s_short_arrays_are_read() -> None:
    value = [1.0, [["BlockStored", [5], None, [1, 2], 2, 3], ["BlockRemoved", [5]]]]
    batch = decode_batch(msgspec.msgpack.encode(value))
    assert batch.events == (KvStored((5,), None, [1, 2], 2, "3"), KvRemoved((5,)))


def test_windows_and_states_are_told_apart_from_what_keeps_all() -> None:
    for kind, window, keeps_all in (
        (None, None, True),
        (None, 512, False),
        ("full_attention", None, True),
        ("mla_attention", None, True),
        ("sliding_window", 512, False),
        ("mamba", None, False),
    ):
        one = msgspec.structs.replace(
            STORED, kv_cache_spec_kind=kind, kv_cache_spec_sliding_window=window
        )
        (event,) = decode_batch(msgspec.msgpack.encode(Batch(1.0, [one]))).events
        assert isinstance(event, KvStored)
        assert event.keeps_all is keeps_all


def test_an_event_from_the_future_is_passed_over() -> None:
    value = [1.0, [{"type": "BlockMoved", "to": "Mars"}, {"type": "AllBlocksCleared"}]]
    assert decode_batch(msgspec.msgpack.encode(value)).events == (KvCleared(),)


@pytest.mark.parametrize(
    "value",
    [
        7,
        [],
        [1.0],
        {"ts": 1.0},
        [1.0, [3]],
        [1.0, [[]]],
        [1.0, [{"type": "BlockRemoved", "block_hashes": "abc"}]],
        [1.0, [["BlockStored", [1], None, [1], 0]]],
        [1.0, [["BlockStored", [1], None, [1, 2, 3], 2]]],
        [1.0, [["BlockStored", [1], None, [-1, 2], 2]]],
        [1.0, [["BlockStored", [1], 1.5, [1, 2], 2]]],
        [1.0, [["BlockStored", [1], None, ["a", "b"], 2]]],
    ],
)
def test_what_is_no_batch_is_refused(value: object) -> None:
    with pytest.raises(RequestError):
        decode_batch(msgspec.msgpack.encode(value))


@given(st.binary())
def test_bytes_of_any_kind_are_a_batch_or_an_error(payload: bytes) -> None:
    try:
        decode_batch(payload)
    except RequestError:
        return


def test_sequence_numbers_are_eight_bytes_and_minus_one_ends_a_replay() -> None:
    assert encode_sequence(258) == b"\0\0\0\0\0\0\1\2"
    assert encode_sequence(END_OF_REPLAY) == b"\xff" * 8
    assert decode_sequence(encode_sequence(2**40)) == 2**40
    with pytest.raises(RequestError):
        decode_sequence(b"123")
