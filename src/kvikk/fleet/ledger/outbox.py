"""A replica's side of the ledger: what it has settled waits here until the ingress has it."""

from collections import OrderedDict
from secrets import token_hex

from kvikk.fleet.ledger.records import Ask, Batch, Receipt, Settled

_MOST_RECORDS = 1 << 14
_MOST_INGRESSES = 256
_BATCH_RECORDS = 512


class _Stream:
    """What one ingress is to get: its records are numbered from 1, without a gap."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.last = 0
        self.records: OrderedDict[int, Settled] = OrderedDict()

    @property
    def gone_through(self) -> int:
        """Numbers up to this that are not here never come again."""
        return next(iter(self.records), self.last + 1) - 1


class Outbox:
    """One process of one replica. Called from one thread; keeps at most ``most_records``.

    ``replica`` is the name by which the ingress sends to it. The epoch is this process's own: one
    that starts again under the same name has another, and its numbers begin anew. An ingress that
    does not ask any more is not waited for: the oldest records make room.
    """

    def __init__(self, replica: str, most_records: int = _MOST_RECORDS) -> None:
        self.replica = replica
        self.dropped = 0
        self._epoch = token_hex(8)
        self._most_records = most_records
        self._running: set[str] = set()
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._num_streams = 0
        self._num_records = 0

    def __len__(self) -> int:
        """Records that no ingress is known to have."""
        return self._num_records

    def began(self, attempt: str) -> None:
        """An attempt has arrived. From now on it is known, and must be settled."""
        self._running.add(attempt)

    def settled(self, record: Settled) -> Batch:
        """An attempt has ended, in whatever way; call it once, in ``finally``.

        The batch has this record alone, to go with the end of the answer if there is one.
        """
        self._running.discard(record.attempt)
        stream = self._stream(ingress_of(record.attempt))
        stream.last += 1
        stream.records[stream.last] = record
        self._num_records += 1
        while self._num_records > self._most_records:
            self._drop()
        return Batch(self.replica, stream.epoch, stream.gone_through, ((stream.last, record),))

    def collect(self, ask: Ask, limit: int = _BATCH_RECORDS) -> Batch:
        """Let go of what the ingress has; the oldest ``limit`` records that it lacks."""
        stream = self._stream(ask.ingress)
        receipt = ask.receipts.get(stream.epoch, Receipt())
        while stream.records and next(iter(stream.records)) <= receipt.through:
            stream.records.popitem(last=False)
            self._num_records -= 1
        for number in receipt.beyond:
            if stream.records.pop(number, None) is not None:
                self._num_records -= 1
        waiting = {record.attempt for record in stream.records.values()} | self._running
        unknown = [one for one in ask.owed.get(self.replica, ()) if one not in waiting]
        records = tuple(item for item, _ in zip(stream.records.items(), range(limit), strict=False))
        return Batch(self.replica, stream.epoch, stream.gone_through, records, tuple(unknown))

    def _stream(self, ingress: str) -> _Stream:
        stream = self._streams.get(ingress)
        if stream is None:
            self._num_streams += 1
            stream = self._streams[ingress] = _Stream(f"{self._epoch}-{self._num_streams}")
            if len(self._streams) > _MOST_INGRESSES:
                _, forgotten = self._streams.popitem(last=False)
                self._num_records -= len(forgotten.records)
                self.dropped += len(forgotten.records)
        self._streams.move_to_end(ingress)
        return stream

    def _drop(self) -> None:
        """Drop the oldest record of the ingress that was heard of least recently."""
        stream = next(one for one in self._streams.values() if one.records)
        stream.records.popitem(last=False)
        self._num_records -= 1
        self.dropped += 1


def ingress_of(attempt: str) -> str:
    """The ingress that minted an attempt's id."""
    return attempt.rpartition("/")[0]
