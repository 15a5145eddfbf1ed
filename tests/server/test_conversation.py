from tests.server.common import common_prefix


def test_ten_turns_reuse_all_full_blocks_of_what_came_before(
    idle_server, smollm2_tokenizer, transformers_smollm2_tokenizer
):
    client = idle_server.client()
    block_size = idle_server.cache()["block_size"]
    messages = []
    computed = []  # token ids of every earlier turn whose keys and values exist
    for turn in range(10):
        question = f"Question {turn}: what is {turn} plus {turn + 3}? Explain in a few words."
        messages.append({"role": "user", "content": question})
        # The prompt by another implementation: what the server should have made of the messages.
        prompt = transformers_smollm2_tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True, return_dict=False
        )
        answer = client.chat.completions.create(
            model="smollm2", messages=messages, max_tokens=24, temperature=0
        )
        usage, text = answer.usage, answer.choices[0].message.content
        assert usage.prompt_tokens == len(prompt)
        shared = max((common_prefix(prompt, earlier) for earlier in computed), default=0)
        expected = min(shared, len(prompt) - 1) // block_size * block_size
        assert usage.prompt_tokens_details.cached_tokens == expected
        if turn:
            assert expected >= len(computed[-1]) // block_size * block_size - block_size
        # The last token of an answer is chosen and never run.
        answered = smollm2_tokenizer.encode(text)[: usage.completion_tokens - 1]
        computed.append([*prompt, *answered])
        messages.append({"role": "assistant", "content": text})
