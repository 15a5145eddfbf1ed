"""An agent of a framework that people use, on a short task, over each of the three formats."""

from collections.abc import Callable
from typing import Literal

import pytest
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.server.live import LiveServer

GUIDE = "You are the guide of a small museum of ships, and know what each of them is. " * 3
SETTINGS = {"temperature": 0, "max_tokens": 48, "parallel_tool_calls": False}


class Ship(BaseModel):
    """A ship."""

    kind: Literal["longship", "ferry"]
    masts: int = Field(ge=0, le=3)


def openai_provider(server: LiveServer) -> OpenAIProvider:
    return OpenAIProvider(base_url=f"{server.url}/v1", api_key="none")


def anthropic_provider(server: LiveServer) -> AnthropicProvider:
    return AnthropicProvider(base_url=server.url, api_key="none")


MODELS: dict[str, Callable[[LiveServer], Model]] = {
    "chat": lambda server: OpenAIChatModel("smollm2", provider=openai_provider(server)),
    "responses": lambda server: OpenAIResponsesModel("smollm2", provider=openai_provider(server)),
    "messages": lambda server: AnthropicModel("smollm2", provider=anthropic_provider(server)),
}


@pytest.mark.parametrize("api", MODELS)
def test_an_agent_answers_with_a_record_and_again_when_it_is_sent_back(
    api: str, idle_server: LiveServer
) -> None:
    agent = Agent(
        MODELS[api](idle_server), output_type=Ship, instructions=GUIDE, model_settings=SETTINGS
    )
    seen: list[Ship] = []

    @agent.output_validator
    def send_back_once(ship: Ship) -> Ship:
        seen.append(ship)
        if len(seen) == 1:
            raise ModelRetry("Look at the ship again.")
        return ship

    result = agent.run_sync("The Gokstad ship has one mast.")
    assert [type(ship) for ship in seen] == [Ship, Ship]
    assert result.output == seen[1]
    # Both requests begin alike: tools, instructions and the question are read the second time.
    requests = idle_server.get("/v1/kvikk/requests?limit=2").json()["requests"]
    told = result.usage
    assert (told.requests, told.input_tokens) == (2, sum(r["prompt_tokens"] for r in requests))
    assert told.cache_read_tokens == sum(r["cached_tokens"] for r in requests)
    assert told.cache_read_tokens >= requests[1]["prompt_tokens"] // 32 * 32 - 32 > 0


@pytest.mark.parametrize("api", MODELS)
def test_an_agents_second_turn_reads_what_its_first_one_wrote(
    api: str, idle_server: LiveServer
) -> None:
    agent = Agent(MODELS[api](idle_server), instructions=GUIDE, model_settings=SETTINGS)
    first = agent.run_sync("What is a longship?")
    with agent.run_stream_sync("And a ferry?", message_history=first.all_messages()) as second:
        text = second.get_output()
    assert text == agent.run_sync("And a ferry?", message_history=first.all_messages()).output
    assert second.usage.cache_read_tokens >= first.usage.input_tokens // 32 * 32 > 0
