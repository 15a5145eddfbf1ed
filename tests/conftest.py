"""What all rooms' tests use: the real models, who else can read them, and how tests are run."""

import os
import signal
from pathlib import Path
from typing import Any

# Read as numpy and torch are imported. Their matrices are small here, and a second thread does
# little but wait for the first; the engine's own threads are asked for by other means.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling

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

# A shell without job control starts what runs in the background deaf to Ctrl-C, and so would be
# what tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


class _Files(LoadFileScheduling):
    """A file's tests stay in one process, and share what they start.

    All of the fleet's do: Ray finds any cluster of its machine, also another file's.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "tests/fleet" if file.startswith("tests/fleet/") else file


@pytest.hookimpl(optionalhook=True)  # absent with ``-p no:xdist``
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Files:
    return _Files(config, log)


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
