"""The engine in somebody's own event loop."""

import asyncio
from pathlib import Path

import pytest

from kvikk import LLM, AsyncLLM
from kvikk.backends.base import SamplingParameters
from kvikk.engine.requests import Generation
from kvikk.errors import RequestError

OPTIONS = {"backend": "reference", "threads": 1, "kv_memory_bytes": 16 << 20}
PROMPTS = ["The sea", "A ship, a ship, a ship", "One, two,"]
GENERATION = Generation(8, SamplingParameters(1.0), seed=4, ignore_eos=True, num_logprobs=1)


def test_answers_made_together_in_a_loop_are_those_of_a_script(tiny_model: Path) -> None:
    async def ask() -> list[list[str]]:
        async with await AsyncLLM.load(str(tiny_model), **OPTIONS) as llm:
            together = await asyncio.gather(*(llm.generate(one, GENERATION) for one in PROMPTS))
            two = await llm.generate(PROMPTS[0], Generation(5, choices=2))
            assert len(two) == 2
            async for _ in llm.stream(PROMPTS[0], Generation(1000, ignore_eos=True)):
                break  # leaving early ends the request
            while llm.loaded.engine.has_work:
                await asyncio.sleep(0.01)
            with pytest.raises(RequestError, match="n is 100"):
                await llm.generate(PROMPTS[0], Generation(choices=100))
            chat = await llm.chat([{"role": "user", "content": "Hi"}], Generation(3))
            assert chat.usage.completion_tokens <= 3
            return [[one.text for one in answers] for answers in together]

    told = asyncio.run(ask())
    script = LLM(str(tiny_model), **OPTIONS)
    answers = script.generate(
        PROMPTS, max_tokens=8, temperature=1.0, seed=4, ignore_eos=True, num_logprobs=1
    )
    assert [[one.text] for one in answers] == told
    assert all(len(one.logprobs) == 8 for one in answers)
    several = script.generate(PROMPTS[:2], max_tokens=4, temperature=1.0, seed=4, choices=2)
    assert [one.prompt_token_ids for one in several[::2]] == [
        one.prompt_token_ids for one in several[1::2]
    ]
