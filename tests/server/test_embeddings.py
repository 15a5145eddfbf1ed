"""Embeddings over HTTP: what transformers' hidden states are, through OpenAI's own client."""

import base64
import threading

import numpy as np
import openai
import pytest
import torch

from kvikk.engine.options import EngineOptions
from kvikk.server.options import ServerOptions
from tests.backends import truth
from tests.backends.test_reference_transformers import CONFIGS
from tests.server.live import LiveServer, start

TEXTS = ["The capital of France is Paris.", "Balloons over the harbour", "def f(x):\n    return x"]


@pytest.fixture(scope="module")
def hidden_states(smollm2_source, smollm2_tokenizer):
    """By transformers: the last hidden states of a text's tokens."""
    model = truth.load_gguf(smollm2_source.path, CONFIGS["smollm2"])

    def of(text):
        ids = smollm2_tokenizer.encode(text)
        with torch.no_grad():
            return model.model(torch.tensor([ids])).last_hidden_state[0].double().numpy()

    return of


def unit(vector):
    return vector / np.linalg.norm(vector)


def embed(server: LiveServer, given, model="smollm2", **more):
    return server.client().embeddings.create(model=model, input=given, **more)


def vectors(answer):
    return np.array([one.embedding for one in answer.data])


def test_vectors_have_the_direction_of_transformers_hidden_states(server, hidden_states):
    last = vectors(embed(server, TEXTS))
    mean = vectors(embed(server, TEXTS, extra_body={"pooling": "mean"}))
    assert last.shape == mean.shape == (3, 576)
    for index, text in enumerate(TEXTS):
        states = hidden_states(text)
        assert last[index] @ unit(states[-1]) > 0.999
        assert mean[index] @ unit(states.mean(axis=0)) > 0.999
    np.testing.assert_allclose(np.linalg.norm([*last, *mean], axis=1), 1, atol=1e-6)


def test_all_forms_of_input_and_encoding_say_the_same(server, smollm2_tokenizer):
    tokens = [smollm2_tokenizer.encode(text) for text in TEXTS]
    expected = vectors(embed(server, TEXTS))
    np.testing.assert_array_equal(vectors(embed(server, tokens)), expected)
    np.testing.assert_array_equal(vectors(embed(server, tokens[1]))[0], expected[1])
    np.testing.assert_array_equal(vectors(embed(server, TEXTS[1]))[0], expected[1])
    plain = vectors(embed(server, TEXTS, encoding_format="float"))
    np.testing.assert_array_equal(plain.astype(np.float32), expected.astype(np.float32))
    body = {"model": "smollm2", "input": TEXTS[0], "encoding_format": "base64", "dimensions": 576}
    answer = server.post("/v1/embeddings", body).json()
    raw = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
    np.testing.assert_array_equal(raw, expected[0].astype(np.float32))
    total = len(tokens[0])
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == total


def test_prompts_are_accounted_for_as_any(idle_server):
    text = "one two three four five six seven eight nine ten" + " and ten" * 30
    first = embed(idle_server, text)
    again = embed(idle_server, [text, text + " eleven"], extra_body={"kvikk": {"ledger": True}})
    size = first.usage.prompt_tokens
    reused = (size - 1) // 32 * 32
    assert again.usage.prompt_tokens == 2 * size + 1
    assert again.usage.prompt_tokens_details["cached_tokens"] == 2 * reused
    np.testing.assert_array_equal(again.data[0].embedding, first.data[0].embedding)
    for ledger, number in zip(again.kvikk["ledgers"], (0, 1), strict=True):
        assert ledger["spans"][0]["cause"] == "hit.device"
        kept = idle_server.get(f"/v1/kvikk/requests/{again.id}-{number}").json()
        assert kept["spans"] == ledger["spans"]
        assert kept["route"] == "/v1/embeddings"
    # A mean looks at every token: it reads nothing from the cache, and says so.
    raw = idle_server.post("/v1/embeddings", {"model": "smollm2", "input": text, "pooling": "mean"})
    assert raw.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert raw.headers["x-kvikk-ledger"].startswith(f"tail={size}")
    ledger = idle_server.get(f"/v1/kvikk/requests/{raw.headers['x-request-id']}").json()
    assert [span["cause"] for span in ledger["spans"]] == ["tail"]


def test_hundreds_of_inputs_pass_through_a_queue_of_a_few(server):
    texts = [f"number {index}" for index in range(60)]
    together = vectors(embed(server, texts))
    np.testing.assert_array_equal(together[41], vectors(embed(server, texts[41]))[0])


@pytest.mark.parametrize(
    ("body", "parameter", "part"),
    [
        ({}, "input", "missing"),
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "empty"),
        ({"input": ["a", ""]}, "input[1]", "empty"),
        ({"input": ["a", 3]}, "input[1]", "expected a string"),
        ({"input": [[1], []]}, "input[1]", "empty"),
        ({"input": [1, -1]}, "input[1]", "at least 0"),
        ({"input": [[1], [999999]]}, "input[1]", "token id 999999"),
        ({"input": {"text": "a"}}, "input", "a list"),
        ({"input": ["a"] * 2049}, "input", "at most 2048"),
        ({"input": "word " * 3000}, "input", "limit is 2048"),
        ({"input": "a", "dimensions": 64}, "dimensions", "576"),
        ({"input": "a", "dimensions": 0}, "dimensions", "at least 1"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "float, base64"),
        ({"input": "a", "pooling": "cls"}, "pooling", "last, mean"),
        ({"input": "a", "model": "nobody"}, "model", "no model"),
        ({"input": "a", "priority": "high"}, "priority", "whole number"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_place(body, parameter, part, server):
    response = server.post("/v1/embeddings", {"model": "smollm2"} | body)
    assert response.status_code == (404 if parameter == "model" else 400)
    error = response.json()["error"]
    assert error["param"] == parameter
    assert part in error["message"]


def test_a_client_that_goes_leaves_nothing_behind(idle_server):
    body = {"model": "smollm2", "input": [[7] * 2000 + [n] for n in range(200)], "pooling": "mean"}
    idle_server.leave("/v1/embeddings", body)
    idle_server.wait_until_idle()
    assert idle_server.post("/v1/kvikk/cache/reset").json()["complete"]


def test_a_full_server_says_so(tiny_model):
    engine = EngineOptions(
        str(tiny_model), threads=1, kv_memory_bytes=64 << 20, max_running=1, max_queue=1
    )
    with start(ServerOptions(engine, port=0)) as live:
        # One request at a time is enough for any number of inputs.
        assert len(embed(live, [[1], [2], [3], [4]], "tiny").data) == 4
        body = {"model": "tiny", "prompt": [1], "max_tokens": 16_000, "ignore_eos": True}
        stop = threading.Event()

        def occupy():
            with live.http.stream("POST", "/v1/completions", json=body | {"stream": True}) as one:
                stop.wait()
                one.close()

        threads = [threading.Thread(target=occupy) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            live.wait_for(lambda: live.metric("vllm:num_requests_waiting") == 1)
            with pytest.raises(openai.RateLimitError):
                embed(live, [[1], [2]], "tiny")
        finally:
            stop.set()
        for thread in threads:
            thread.join()
