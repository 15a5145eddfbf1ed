"""The list of models as Anthropic's clients expect it."""

from datetime import UTC, datetime
from typing import Any

from kvikk.wire.models import ModelCard


def model_json(model: ModelCard) -> dict[str, Any]:
    """One model."""
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.max_context_tokens - 1,
        "max_tokens": model.max_context_tokens - 1,
    }


def model_list_json(models: list[ModelCard]) -> dict[str, Any]:
    """All of them, on one page."""
    ids = [model.id for model in models]
    return {
        "data": [model_json(model) for model in models],
        "has_more": False,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
    }
