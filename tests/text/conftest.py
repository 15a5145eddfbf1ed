import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from kvikk.files.sources import ModelSource, resolve
from kvikk.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def smollm2_source() -> ModelSource:
    return resolve("smollm2")


@pytest.fixture(scope="session")
def gemma3_source() -> ModelSource:
    return resolve("gemma3-270m")


@pytest.fixture(scope="session")
def smollm2(smollm2_source: ModelSource) -> Tokenizer:
    return load_tokenizer(smollm2_source)


@pytest.fixture(scope="session")
def gemma3(gemma3_source: ModelSource) -> Tokenizer:
    return load_tokenizer(gemma3_source)


@pytest.fixture(scope="session")
def llama_cpp() -> dict[str, Any]:
    """Token ids by llama.cpp; the file says how they were made."""
    path = Path(__file__).parent / "data" / "llama_cpp_ids.json"
    return json.loads(path.read_bytes())


@pytest.fixture(scope="session")
def transformers_smollm2(smollm2_source: ModelSource) -> Any:
    """The same file's tokeniser and template, as transformers reads them."""
    path = smollm2_source.path
    return transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
