"""The ledger log: a line of JSON for each admitted request, with hashes and counts.

What a line has is enough to count every cause again without the server. Prompts are in it only
where the operator asked for text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kvikk.engine.accounts import Account
from kvikk.engine.books import Books
from kvikk.server.ledgers import request_ledger
from kvikk.server.log_lines import LineLog
from kvikk.text.tokenizer import Tokenizer
from kvikk.wire.ledger import RequestLedger

NAME = "the ledger log"
# Of each block's key so many bytes: enough to tell billions of blocks apart.
KEY_BYTES = 8


@dataclass(frozen=True)
class _Entry:
    ledger: RequestLedger
    key_name: str
    token_ids: Sequence[int]
    block_keys: Sequence[bytes]


class LedgerLog:
    """Appends to ``file``. Raises ModelError if it cannot be written.

    With a ``tokenizer`` lines have the prompts too, as text and as token ids.
    """

    def __init__(self, file: Path, block_size: int, tokenizer: Tokenizer | None) -> None:
        self._log = LineLog(file, NAME)
        self._block_size = block_size
        self._tokenizer = tokenizer

    def follow(self, books: Books) -> None:
        """Write a line for every account that ``books`` open from now on."""

        def log(account: Account, token_ids: Sequence[int], keys: Sequence[bytes]) -> None:
            ledger = request_ledger(books, account, tenant=None)
            # The list of keys grows with the answer; these are the prompt's.
            entry = _Entry(ledger, account.origin.key, token_ids, tuple(keys))
            self._log.put(partial(self._line, entry))

        books.log = log

    def reopen(self) -> None:
        """Open the file by its name again: it was moved away."""
        self._log.reopen()

    def close(self) -> None:
        """Write what is left, and end."""
        self._log.close()

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
