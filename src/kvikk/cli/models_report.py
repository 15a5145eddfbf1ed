"""Models on this machine, for a reader."""

import json
from collections.abc import Sequence
from typing import Any

from kvikk.cli.columns import columns
from kvikk.files.local_models import LocalModel
from kvikk.shapes.quantities import format_bytes


def model_table(models: Sequence[LocalModel]) -> str:
    """A line a model."""
    rows = [
        (model.name, model.origin, format_bytes(model.size_bytes), str(model.path))
        for model in models
    ]
    return columns(rows, right=(2,))


def model_line(model: LocalModel) -> str:
    """One model."""
    return model_table([model])


def print_json(document: Any) -> None:
    """One JSON document; paths are texts in it."""
    print(json.dumps(document, default=str))
