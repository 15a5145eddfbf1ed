"""The list of models a server has."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelCard:
    """A served model: since when (seconds since 1970), and how long a conversation may be.

    ``parent`` is the model that an adapter is of.
    """

    id: str
    created: int
    max_context_tokens: int
    parent: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The model as an object."""
        return {
            "id": self.id,
            "object": "model",
            "created": self.created,
            "owned_by": "kvikk",
            "max_model_len": self.max_context_tokens,
            "parent": self.parent,
        }
