"""The ledger log: a line of JSON for each admitted request, with hashes and counts.

What a line has is enough to count every cause again without the server. Prompts are in it only
where the operator asked for text.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

from kvikk.engine.accounts import Account
from kvikk.engine.books import Books
from kvikk.errors import ModelError
from kvikk.server.ledgers import request_ledger
from kvikk.text.tokenizer import Tokenizer
from kvikk.wire.events import encode_json
from kvikk.wire.ledger import RequestLedger

logger = logging.getLogger(__name__)

# Of each block's key so many bytes: enough to tell billions of blocks apart.
KEY_BYTES = 8


@dataclass(frozen=True)
class _Entry:
    ledger: RequestLedger
    key_name: str
    token_ids: Sequence[int]
    block_keys: Sequence[bytes]


def open_ledger_log(file: Path) -> BinaryIO:
    """The file, to append to. Raises ModelError if it cannot be written."""
    try:
        return file.open("ab")
    except OSError as error:
        raise ModelError(
            f"the ledger log {file} cannot be written: {error.strerror or error}"
        ) from None


class LedgerLog:
    """Appends to ``file`` in a thread of its own, so that no disk holds up the engine.

    Raises ModelError if the file cannot be written. With a ``tokenizer`` lines have the prompts
    too, as text and as token ids.
    """

    def __init__(self, file: Path, block_size: int, tokenizer: Tokenizer | None) -> None:
        self._file = open_ledger_log(file)
        self._block_size = block_size
        self._tokenizer = tokenizer
        self._entries: SimpleQueue[_Entry | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kvikk-ledger-log", daemon=True)
        self._thread.start()

    def follow(self, books: Books) -> None:
        """Write a line for every account that ``books`` open from now on."""

        def log(account: Account, token_ids: Sequence[int], keys: Sequence[bytes]) -> None:
            ledger = request_ledger(books, account, tenant=None)
            # The list of keys grows with the answer; these are the prompt's.
            self._entries.put(_Entry(ledger, account.origin.key, token_ids, tuple(keys)))

        books.log = log

    def close(self) -> None:
        """Write what is left, and end."""
        self._entries.put(None)
        self._thread.join()

    def _run(self) -> None:
        with self._file as file:
            while (entry := self._entries.get()) is not None:
                try:
                    file.write(encode_json(self._line(entry)) + b"\n")
                    if self._entries.empty():
                        file.flush()
                except OSError as error:
                    logger.error("the ledger log %s lacks a line: %s", file.name, error.strerror)

    def _line(self, entry: _Entry) -> dict[str, Any]:
        ledger = entry.ledger.to_json()
        spans = ledger.pop("spans")
        line = {
            **ledger,
            "key": entry.key_name,
            "block_size": self._block_size,
            "block_keys": [key[:KEY_BYTES].hex() for key in entry.block_keys],
            "spans": spans,
        }
        if self._tokenizer is not None:
            line["token_ids"] = list(entry.token_ids)
            line["text"] = self._tokenizer.decode(entry.token_ids, special=True)
        return line
