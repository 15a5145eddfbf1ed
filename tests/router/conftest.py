from collections.abc import Iterator

import pytest

from kvikk.files.sources import ModelSource
from kvikk.router.placement.prompts import TextSide
from kvikk.text.chat import load_chat_template
from kvikk.text.tokenizer import load_tokenizer
from tests.router.live import LiveRouter, StubReplica, router, stubs, wait_for


@pytest.fixture(scope="session")
def three_stubs() -> Iterator[list[StubReplica]]:
    with stubs(3) as started:
        yield started


@pytest.fixture(scope="session")
def shared_router(three_stubs: list[StubReplica]) -> Iterator[LiveRouter]:
    # No limit that only a slow machine would meet.
    with router(three_stubs) as live:
        yield live


@pytest.fixture
def live(shared_router: LiveRouter, three_stubs: list[StubReplica]) -> Iterator[LiveRouter]:
    """A router before three stubs that remember nothing; every test leaves it without load."""
    shared_router.wait_until_well(3)
    for stub in three_stubs:
        stub.forget()
    yield shared_router
    wait_for(shared_router.is_idle)


@pytest.fixture(scope="session")
def text_side(smollm2_source: ModelSource) -> TextSide:
    tokenizer = load_tokenizer(smollm2_source)
    return TextSide(tokenizer, load_chat_template(smollm2_source, tokenizer))
