"""Fixtures that several rooms use: the real models, and who else can read them."""

from pathlib import Path
from typing import Any

import hypothesis
import pytest

from kvikk.files.sources import ModelSource, resolve
from kvikk.text.tokenizer import Tokenizer, load_tokenizer
from tests.tiny_model import write_tiny_model

# The same examples in every run, however slow the machine: what fails is a change's fault.
# ``pytest --hypothesis-profile=default`` looks for examples that nobody has seen.
hypothesis.settings.register_profile(
    "kvikk",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("kvikk")


@pytest.fixture(scope="session")
def smollm2_source() -> ModelSource:
    return resolve("smollm2")


@pytest.fixture(scope="session")
def gemma3_source() -> ModelSource:
    return resolve("gemma3-270m")


@pytest.fixture(scope="session")
def tiny_model(smollm2_source: ModelSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that speaks as SmolLM2 reads, and says nonsense, fast."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_model(smollm2_source.path, path)
    return path


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_source: ModelSource) -> Tokenizer:
    return load_tokenizer(smollm2_source)


@pytest.fixture(scope="session")
def gemma3_tokenizer(gemma3_source: ModelSource) -> Tokenizer:
    return load_tokenizer(gemma3_source)


@pytest.fixture(scope="session")
def transformers_smollm2_tokenizer(smollm2_source: ModelSource) -> Any:
    """The same file's tokeniser and template, as transformers reads them."""
    import transformers

    path = smollm2_source.path
    return transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
