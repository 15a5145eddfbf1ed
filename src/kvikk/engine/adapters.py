"""The adapters of an engine, by name: loaded and unloaded between two steps while requests run.

A name is free as soon as its adapter is unloaded, and nobody new gets it. Requests that have it run
to their ends with it; the backend forgets it with the last of them.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kvikk.backends.base import Backend
from kvikk.errors import RequestError, UnknownModelError
from kvikk.models.adapter import Adapter

MAX_ADAPTERS = 64
_MAX_NAME_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """An adapter that requests can name. ``number`` is the backend's name for it.

    ``num_bytes`` are those of its matrices in float32; ``loaded_at_s`` counts from 1970.
    """

    name: str
    number: int
    content_digest: bytes
    rank: int
    num_bytes: int
    loaded_at_s: float


class Adapters:
    """Owned by the engine's thread; ``by_name`` may be read in any, and is replaced at a change."""

    def __init__(self, backend: Backend) -> None:
        self.by_name: Mapping[str, LoadedAdapter] = {}
        self._backend = backend
        self._in_backend: set[int] = set()
        self._num_sequences: Counter[int] = Counter()  # that have not ended, by adapter

    def load(self, name: str, adapter: Adapter) -> LoadedAdapter:
        """Let requests name an adapter that was read for this engine's model.

        Raises RequestError for a name that is taken or cannot be one, and if there are too many.
        """
        if not 0 < len(name) <= _MAX_NAME_CHARACTERS or not name.isprintable():
            raise RequestError(
                f"{name[:_MAX_NAME_CHARACTERS]!r} is no name for an adapter; expected 1 to "
                f"{_MAX_NAME_CHARACTERS} printable characters",
                "lora_name",
            )
        if name in self.by_name:
            raise RequestError(
                f"there is an adapter {name!r} already; unload it first", "lora_name"
            )
        if len(self._in_backend) >= MAX_ADAPTERS:
            raise RequestError(
                f"{MAX_ADAPTERS} adapters are loaded, which is the limit; unload one", "lora_name"
            )
        rank, num_bytes = adapter.rank, adapter.num_bytes
        number = next(one for one in range(1, MAX_ADAPTERS + 1) if one not in self._in_backend)
        self._backend.load_adapter(number, adapter)
        self._in_backend.add(number)
        loaded = LoadedAdapter(name, number, adapter.content_digest, rank, num_bytes, time.time())
        self.by_name = {**self.by_name, name: loaded}
        return loaded

    def unload(self, name: str) -> int:
        """Let no new request name it; returns how many answers still run with it.

        Raises RequestError if there is none of that name.
        """
        adapter = self.of(name)
        if adapter is None:
            raise RequestError("an adapter's name is needed", "lora_name")
        self.by_name = {one: other for one, other in self.by_name.items() if one != name}
        self._forget_if_unused(adapter.number)
        return self._num_sequences[adapter.number]

    def of(self, name: str) -> LoadedAdapter | None:
        """The adapter of this name; None for the empty one, the base model.

        Raises UnknownModelError if there is none of that name.
        """
        if not name:
            return None
        adapter = self.by_name.get(name)
        if adapter is None:
            told = name[:_MAX_NAME_CHARACTERS]
            raise UnknownModelError(f"no adapter {told!r} is loaded", "model")
        return adapter

    def hold(self, adapter: LoadedAdapter) -> None:
        """One more sequence has it, until it is ``let_go``."""
        self._num_sequences[adapter.number] += 1

    def let_go(self, adapter: LoadedAdapter) -> None:
        """A sequence that had it has ended."""
        self._num_sequences[adapter.number] -= 1
        self._forget_if_unused(adapter.number)

    def _forget_if_unused(self, number: int) -> None:
        named = any(one.number == number for one in self.by_name.values())
        if not named and not self._num_sequences[number]:
            self._backend.unload_adapter(number)
            self._in_backend.remove(number)
            del self._num_sequences[number]
