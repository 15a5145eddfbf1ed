"""What a request may name as its model: the one that is served, and its adapters."""

from kvikk.engine.adapters import Adapters
from kvikk.errors import UnknownModelError
from kvikk.wire.models import ModelCard

_NAMES_TOLD = 20


class ServedModels:
    """The base model and whatever adapters are loaded at the moment. May be asked in any thread."""

    def __init__(self, base: ModelCard, adapters: Adapters) -> None:
        self.base = base
        self._adapters = adapters

    def cards(self) -> list[ModelCard]:
        """All of them, the base model first."""
        return [
            self.base,
            *(
                ModelCard(
                    one.name, int(one.loaded_at_s), self.base.max_context_tokens, self.base.id
                )
                for one in self._adapters.by_name.values()
            ),
        ]

    def find(self, name: str) -> ModelCard:
        """The one of this name. Raises UnknownModelError if there is none."""
        cards = self.cards()
        found = next((card for card in cards if card.id == name), None)
        if found is None:
            names = ", ".join(repr(card.id) for card in cards[:_NAMES_TOLD])
            raise UnknownModelError(
                f"no model {name[:200]!r} here; this server has {names}", "model"
            )
        return found

    def adapter_of(self, name: str) -> str:
        """The name of the adapter that a model is; empty for the base model."""
        return "" if name == self.base.id else name
