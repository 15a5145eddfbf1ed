"""Real models through the whole engine: one answer, alone or not, from the cache, preempted."""

import pytest

from kvikk import LLM
from kvikk.backends.base import SamplingParameters
from kvikk.engine.loading import load_engine
from kvikk.engine.options import EngineOptions
from kvikk.engine.requests import Generation, Request
from kvikk.errors import BusyError, ModelError, RequestError
from tests.engine.driver import live_blocks, run

MIB = 2**20
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a fox who",
    "def fibonacci(n):",
    "🦜 is the emoji of a",
    "Water boils at",
    "A haiku about the sea:\n",
]
STORY = "The old lighthouse keeper counted the ships that passed in the night. " * 60


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2", kv_memory_bytes=256 * MIB)


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[str]:
    return [llm.generate(prompt, max_tokens=24)[0].text for prompt in PROMPTS]


@pytest.fixture(scope="module")
def gemma() -> LLM:
    return LLM("gemma3-270m", kv_memory_bytes=128 * MIB, max_running=4, max_context_tokens=2048)


def test_prompts_answer_in_company_as_they_do_alone(llm: LLM, alone: list[str]) -> None:
    together = llm.generate(PROMPTS, max_tokens=24)
    assert [completion.text for completion in together] == alone
    assert "Paris" in alone[0]
    for prompt, completion in zip(PROMPTS, together, strict=True):
        assert completion.prompt_token_ids == tuple(llm.loaded.tokenizer.encode(prompt))
        assert completion.usage.completion_tokens == len(completion.token_ids) <= 24
        assert completion.tokens_per_s is not None


def test_a_preempted_answer_is_the_same_answer(llm: LLM) -> None:
    expected = [completion.text for completion in llm.generate(PROMPTS[:3], max_tokens=40)]
    # Six blocks of 16: three prompts are let in with a block each to grow into, and need nine.
    tight = LLM(
        "smollm2",
        kv_memory_bytes=6 * 16 * 23_040,
        block_size=16,
        max_context_tokens=64,
        max_running=4,
        step_tokens=8,
    )
    texts = [completion.text for completion in tight.generate(PROMPTS[:3], max_tokens=40)]
    assert tight.loaded.engine.stats().preemptions > 0
    assert texts == expected
    assert live_blocks(tight.loaded.engine) == 0


def test_a_seed_gives_the_same_answer_under_any_load(llm: LLM) -> None:
    parameters = {"max_tokens": 16, "temperature": 0.9, "top_p": 0.95, "seed": 11}
    quiet = llm.generate("Once upon a time", **parameters)[0].text
    busy = llm.generate(["Once upon a time", *PROMPTS], **parameters)[0].text
    other = llm.generate("Once upon a time", **{**parameters, "seed": 12})[0].text
    assert busy == quiet != other


def test_every_turn_of_a_conversation_reuses_the_full_blocks_before_it(llm: LLM) -> None:
    tokenizer, template = llm.loaded.tokenizer, llm.loaded.chat_template
    assert template is not None
    messages = [{"role": "system", "content": "Answer briefly and keep to what you know."}]
    known: list[int] = []
    for question in ("What is a fjord?", "Name one in Norway.", "How deep is it?", "Thanks!"):
        messages.append({"role": "user", "content": question})
        prompt = tokenizer.encode(template.render(messages), add_bos=False)
        completion = llm.chat(messages, max_tokens=40)
        shared = next(
            (i for i, (a, b) in enumerate(zip(prompt, known, strict=False)) if a != b),
            min(len(prompt), len(known)),
        )
        assert completion.usage.cached_tokens == min(shared, len(prompt) - 1) // 32 * 32
        # The last token of an answer is never computed, so it cannot be reused.
        known = [*prompt, *completion.token_ids[:-1]]
        messages.append({"role": "assistant", "content": completion.text})
    assert completion.usage.cached_tokens > 64


def test_a_long_prompt_is_reused_and_answers_the_same(llm: LLM) -> None:
    cold = llm.generate(STORY, max_tokens=8)[0]
    warm = llm.generate(STORY, max_tokens=8)[0]
    assert cold.usage.cached_tokens == 0
    assert warm.usage.cached_tokens == (warm.usage.prompt_tokens - 1) // 32 * 32 > 700
    assert warm.token_ids == cold.token_ids


def test_a_window_gives_back_its_blocks_and_still_hits(gemma: LLM) -> None:
    engine = gemma.loaded.engine
    cold = gemma.generate(STORY, max_tokens=8)[0]
    warm = gemma.generate(STORY, max_tokens=8)[0]
    assert cold.usage.prompt_tokens > 600  # past the window of 512
    assert warm.usage.cached_tokens == (warm.usage.prompt_tokens - 1) // 32 * 32
    assert warm.token_ids == cold.token_ids
    prompt = gemma.loaded.tokenizer.encode(STORY)
    engine.add(Request("held", prompt, Generation(max_tokens=4, ignore_eos=True)))
    engine.step()
    live = {group.window_tokens: group.live_blocks for group in engine.stats().groups}
    assert live[512] < live[None]
    engine.abort("held")
    engine.step()
    assert live_blocks(engine) == 0


def test_prompts_that_arrive_together_compute_their_common_part_once(llm: LLM) -> None:
    engine = llm.loaded.engine
    tokenizer = llm.loaded.tokenizer
    common = tokenizer.encode("You are a careful assistant who answers in one word. " * 12)
    before = engine.stats()
    requests = [
        Request(f"together-{i}", [*common, *tokenizer.encode(prompt)], Generation(max_tokens=1))
        for i, prompt in enumerate(PROMPTS)
    ]
    run(engine, requests)
    computed = engine.stats().computed_tokens - before.computed_tokens
    own = sum(len(request.prompt_token_ids) for request in requests) - 6 * (len(common) // 32 * 32)
    assert computed == len(common) // 32 * 32 + own


def test_a_bad_prompt_in_a_batch_is_refused_before_anything_runs(llm: LLM) -> None:
    steps = llm.loaded.engine.stats().steps
    with pytest.raises(RequestError, match="limit"):
        llm.generate(["fine", "word " * 9000])
    assert llm.loaded.engine.stats().steps == steps
    assert not llm.loaded.engine.has_work


@pytest.mark.parametrize("prompts", [[1, 2, 3], [[1, "two"]], [None], [["text"]], [[1.5]]])
def test_what_is_neither_text_nor_token_ids_is_one_clear_line(llm: LLM, prompts: object) -> None:
    with pytest.raises(RequestError, match="expected a text or a list of token ids"):
        llm.generate(prompts)  # type: ignore[arg-type]


def test_a_batch_over_the_queues_limit_leaves_nothing_of_itself_behind() -> None:
    narrow = LLM("smollm2", kv_memory_bytes=16 * MIB, max_running=1, max_queue=1, step_tokens=64)
    with pytest.raises(BusyError, match="limit"):
        narrow.generate(PROMPTS[:3], max_tokens=4)
    assert not narrow.loaded.engine.has_work
    assert "Paris" in narrow.generate(PROMPTS[0], max_tokens=4)[0].text


def test_the_reference_backend_serves_too_and_loading_tells_what_it_is_doing() -> None:
    lines: list[str] = []
    options = EngineOptions(backend="reference", kv_memory_bytes=64 * MIB, max_context_tokens=512)
    loaded = load_engine(options, lines.append)
    assert lines == ["reading the tokeniser", "reading the weights", "loading the weights"]
    prompt = loaded.tokenizer.encode(PROMPTS[0])
    greedy = Generation(max_tokens=2, sampling=SamplingParameters())
    answers = run(loaded.engine, [Request("a", prompt, greedy)])
    assert answers["a"].text == " Paris."
    assert (loaded.memory.kv_dtype, loaded.backend) == ("f32", "reference")


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "gpu"},
        {"kv_dtype": "int3"},
        {"block_size": 24},
        {"max_running": 0},
        {"step_tokens": 8, "max_running": 9},
        {"kv_memory_bytes": 1000},
        {"model": "no-such-model"},
    ],
)
def test_options_without_sense_are_one_clear_line(options: dict[str, object]) -> None:
    with pytest.raises(ModelError) as caught:
        LLM(**options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
