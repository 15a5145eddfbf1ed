"""Adapters over HTTP: named as a model, loaded and unloaded while it serves, and never mixed up."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from safetensors.numpy import load_file, save_file

from kvikk.backends.reference.backend import ReferenceBackend
from kvikk.engine.llm import LLM
from kvikk.engine.loading import load_engine
from kvikk.engine.options import EngineOptions
from kvikk.errors import ModelError, RequestError
from kvikk.files.adapters import CONFIG_NAME, WEIGHTS_NAME
from kvikk.files.sources import resolve
from kvikk.models.load import load_decoder
from kvikk.server.app import create_app
from kvikk.server.options import ServerOptions
from kvikk.server.report import memory_table
from kvikk.shapes.quantities import format_bytes
from tests.backends.driver import Driver
from tests.server.adapters import merged, write_adapter
from tests.server.live import LiveServer, start

OPERATOR = "key-of-the-operator"
PROMPT = list(range(1000, 1070))
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def decoder(tiny_model):
    return load_decoder(resolve(str(tiny_model)))


@pytest.fixture(scope="module")
def folders(decoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return {name: write_adapter(folder / name, decoder, seed) for seed, name in enumerate("rgb")}


def engine(tiny_model, **options):
    return EngineOptions(
        str(tiny_model), kv_dtype="f32", threads=1, kv_memory_bytes=64 << 20, **options
    )


@pytest.fixture(scope="module")
def server(tiny_model, folders):
    adapters = (("r", str(folders["r"])), ("g", str(folders["g"])))
    options = ServerOptions(
        engine(tiny_model, adapters=adapters), port=0, api_keys=("key",), operator_key=OPERATOR
    )
    with start(options) as live:
        live.http.headers["Authorization"] = f"Bearer {OPERATOR}"
        yield live


def say(server: LiveServer, model: str, prompt=PROMPT):
    return server.client(OPERATOR).completions.create(
        model=model,
        prompt=prompt,
        max_tokens=NEW_TOKENS,
        temperature=0,
        logprobs=0,
        extra_body={"ignore_eos": True},
    )


def told(completion):
    return completion.choices[0].text, completion.choices[0].logprobs.token_logprobs


def test_adapters_are_listed_with_their_parent(server):
    cards = {card.id: card for card in server.client(OPERATOR).models.list()}
    assert cards.keys() >= {"tiny", "r", "g"}
    assert (cards["tiny"].parent, cards["r"].parent) == (None, "tiny")
    assert server.client(OPERATOR).models.retrieve("g").id == "g"


def test_the_configuration_lists_the_adapters_of_the_start(server, folders):
    options = server.get("/v1/kvikk/config").json()["options"]
    assert options["engine"]["adapters"] == [["r", str(folders["r"])], ["g", str(folders["g"])]]


def test_answers_are_those_of_merged_weights_and_of_each_alone(server, decoder, folders):
    alone = {model: told(say(server, model)) for model in ("tiny", "r", "g")}
    for model, expected in (
        ("tiny", decoder),
        ("r", merged(decoder, folders["r"])),
        ("g", merged(decoder, folders["g"])),
    ):
        driver = Driver(ReferenceBackend(), expected, capacity_tokens=256)
        (answer,), _ = driver.greedy([PROMPT], NEW_TOKENS)
        body = {"model": model, "tokens": answer}
        assert server.post("/detokenize", body).json()["prompt"] == alone[model][0]
    # Together, and once more in another company: nothing is mixed, nothing is rounded otherwise.
    models = ["tiny", "r", "g", "g", "tiny", "r"]
    with ThreadPoolExecutor(len(models)) as pool:
        together = list(pool.map(lambda model: told(say(server, model)), models))
    assert together == [alone[model] for model in models]


def test_the_ledger_names_the_adapter_and_the_bill_tells_models_apart(server):
    other = [*range(2000, 2070)]
    say(server, "tiny", other)
    first = say(server, "r", other)
    again = say(server, "r", other)
    assert first.model == "r"
    causes = []
    for completion in (first, again):
        ledger = server.get(f"/v1/kvikk/requests/{completion.id}").json()
        assert ledger["model"] == "r"
        causes.append([(span["cause"], span["detail"]) for span in ledger["spans"]])
    assert causes[0][0][0] == "changed"
    assert "adapter" in str(causes[0][0][1])
    assert causes[1][0][0] == "hit.device"
    totals = server.get("/v1/kvikk/ledger?by=model").json()["groups"]
    assert totals.keys() >= {"tiny", "r"}


def test_adapters_come_and_go_while_it_serves(server, folders):
    before = told(say(server, "r"))
    body = {"lora_name": "blue", "lora_path": str(folders["b"])}
    card = server.post("/v1/load_lora_adapter", body)
    assert card.status_code == 200
    assert (card.json()["id"], card.json()["parent"]) == ("blue", "tiny")
    blue = told(say(server, "blue"))
    assert blue != before
    assert server.post("/v1/load_lora_adapter", body).status_code == 400
    # A long answer goes on while its adapter's name is already gone.
    stream = server.client(OPERATOR).completions.create(
        model="blue",
        prompt=PROMPT,
        max_tokens=12_000,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    gone = server.post("/v1/unload_lora_adapter", {"lora_name": "blue"}).json()
    assert gone == {"id": "blue", "unloaded": True, "running": 1}
    with pytest.raises(openai.NotFoundError, match="no model 'blue' here; this server has 'tiny'"):
        say(server, "blue")
    next(iter(stream))
    stream.close()
    server.wait_until_idle()
    # Under another name it is the same adapter, and its blocks are still there.
    server.post("/v1/load_lora_adapter", body | {"lora_name": "azure"})
    completion = say(server, "azure")
    assert told(completion) == blue
    assert completion.usage.prompt_tokens_details.cached_tokens == 64
    assert told(say(server, "r")) == before
    server.post("/v1/unload_lora_adapter", {"lora_name": "azure"})


def test_an_adapter_that_overflows_is_named_and_harms_nobody(server, decoder, tmp_path):
    folder = write_adapter(tmp_path / "huge", decoder, seed=9)
    tensors = load_file(folder / WEIGHTS_NAME)
    large = {name: 1e5 * values for name, values in tensors.items() if ".mlp." in name}
    save_file(large, folder / WEIGHTS_NAME)
    config = json.loads((folder / CONFIG_NAME).read_text())
    (folder / CONFIG_NAME).write_text(json.dumps(config | {"lora_alpha": 9e5}))
    body = {"lora_name": "huge", "lora_path": str(folder)}
    assert server.post("/v1/load_lora_adapter", body).status_code == 200
    with ThreadPoolExecutor() as pool:
        other = pool.submit(say, server, "r")
        with pytest.raises(openai.BadRequestError) as caught:
            say(server, "huge")
        assert caught.value.param == "model"
        assert "'huge'" in caught.value.body["message"]
        assert told(other.result()) == told(say(server, "r"))
        response = server.post("/v1/embeddings", {"model": "huge", "input": "A"})
        assert response.json()["error"]["param"] == "model"
        # Of two that unload it at once one does, and the other is told that there is none.
        unloads = [
            pool.submit(server.post, "/v1/unload_lora_adapter", {"lora_name": "huge"})
            for _ in range(8)
        ]
        assert sorted(one.result().status_code for one in unloads) == [200] + 7 * [404]


@pytest.mark.parametrize(
    ("path", "body", "status", "parameter", "part"),
    [
        ("load", {"lora_name": "x"}, 400, "lora_path", "missing"),
        ("load", {"lora_name": 3, "lora_path": "/"}, 400, "lora_name", "string"),
        ("load", {"lora_name": "x", "lora_path": "/nowhere"}, 400, "lora_path", "no adapter"),
        ("load", {"lora_name": "tiny", "lora_path": "/tmp"}, 400, "lora_name", "itself"),
        ("load", {"lora_name": "", "lora_path": "{r}"}, 400, "lora_name", "no name"),
        ("load", {"lora_name": "r", "lora_path": "{r}"}, 400, "lora_name", "already"),
        ("unload", {}, 400, "lora_name", "missing"),
        ("unload", {"lora_name": "nobody"}, 404, "model", "no model"),
        ("unload", {"lora_name": "tiny"}, 400, "lora_name", "itself"),
    ],
)
def test_what_makes_no_sense_is_refused(path, body, status, parameter, part, server, folders):
    if "lora_path" in body:
        body = body | {"lora_path": body["lora_path"].replace("{r}", str(folders["r"]))}
    response = server.post(f"/v1/{path}_lora_adapter", body)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["param"] == parameter
    assert part in error["message"]


def test_only_the_operator_changes_adapters(server, folders):
    body = {"lora_name": "x", "lora_path": str(folders["b"])}
    tenant = {"Authorization": "Bearer key"}
    for path in ("load", "unload"):
        response = server.http.post(f"/v1/{path}_lora_adapter", json=body, headers=tenant)
        assert response.status_code == 403
    assert "x" not in [card.id for card in server.client(OPERATOR).models.list()]


def test_a_program_names_an_adapter_as_well(tiny_model, decoder, folders):
    adapters = (("r", str(folders["r"])),)
    llm = LLM(str(tiny_model), backend="reference", kv_memory_bytes=8 << 20, adapters=adapters)
    for adapter, expected in (("r", merged(decoder, folders["r"])), ("", decoder)):
        driver = Driver(ReferenceBackend(), expected, capacity_tokens=256)
        (answer,), _ = driver.greedy([PROMPT], 4)
        (got,) = llm.generate([PROMPT], max_tokens=4, ignore_eos=True, adapter=adapter)
        assert list(got.token_ids) == answer
    with pytest.raises(RequestError, match="no adapter 'nobody'"):
        llm.generate([PROMPT], adapter="nobody")


def test_a_server_without_an_operators_key_has_no_such_routes(server, tiny_model, folders):
    from starlette.testclient import TestClient

    loaded = load_engine(
        EngineOptions(str(tiny_model), backend="reference", kv_memory_bytes=8 << 20)
    )
    with TestClient(create_app(loaded, ServerOptions())) as client:
        body = {"lora_name": "x", "lora_path": str(folders["b"])}
        response = client.post("/v1/load_lora_adapter", json=body)
        assert response.status_code == 403
        assert "--operator-key" in response.json()["error"]["message"]


def test_an_adapter_that_cannot_be_used_stops_the_start_in_one_line(tiny_model, folders):
    path = str(folders["r"])
    small = {"backend": "reference", "kv_memory_bytes": 8 << 20}
    for adapters, part in (
        ((("x", "/nowhere"),), "no adapter '/nowhere'"),
        ((("x", path), ("x", path)), "already"),
    ):
        with pytest.raises(ModelError, match=part):
            load_engine(EngineOptions(str(tiny_model), adapters=adapters, **small))
    loaded = load_engine(EngineOptions(str(tiny_model), adapters=(("tiny", path),), **small))
    with pytest.raises(ModelError, match="cannot be called 'tiny'"):
        create_app(loaded, ServerOptions())


def test_the_memory_table_counts_adapters(tiny_model, folders):
    options = EngineOptions(
        str(tiny_model), backend="reference", kv_memory_bytes=8 << 20,
        adapters=(("r", str(folders["r"])),),
    )  # fmt: skip
    loaded = load_engine(options)
    tensors = load_file(folders["r"] / WEIGHTS_NAME)
    counted = format_bytes(sum(values.nbytes for values in tensors.values()))
    table = memory_table(loaded.memory, loaded.engine.adapters.by_name.values())
    assert re.search(rf"^adapters +{counted}  r$", table, re.MULTILINE)
    assert "adapters" not in memory_table(loaded.memory)
