import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def llama_cpp() -> dict[str, Any]:
    """Token ids by llama.cpp; the file says how they were made."""
    path = Path(__file__).parent / "data" / "llama_cpp_ids.json"
    return json.loads(path.read_bytes())
