"""A fleet on Ray Serve: SmolLM2 on three nodes, behind one ingress."""

import json
import threading
from itertools import count

import pytest

from kvikk.engine.llm import LLM
from tests.fleet.live import BLOCK_SIZE, LEAST, MOST, Answer, LiveFleet, kvikk

_numbers = count(1)


def fresh_prompt(num_tokens: int) -> list[int]:
    """A prompt that begins like no other."""
    number = next(_numbers)
    return [1000 + number, *(1 + (7 * number + 3 * place) % 900 for place in range(num_tokens - 1))]


def cached(response) -> int:
    return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_conversations_hit_as_they_would_on_one_engine(fleet: LiveFleet) -> None:
    """What each turn reuses, and what it says, is as if there were but one replica."""
    conversations = [fresh_prompt(40) for _ in range(3)]
    with_one = LLM("smollm2", threads=1, kv_memory_bytes=256 << 20, block_size=BLOCK_SIZE)
    replicas: dict[int, set[str]] = {}
    for turn in range(3):
        for number, prompt in enumerate(conversations):
            alone = with_one.generate([prompt], max_tokens=12, ignore_eos=True, temperature=0)[0]
            response = fleet.complete(prompt, 12)
            assert cached(response) == alone.usage.cached_tokens
            assert response.json()["choices"][0]["text"] == alone.text
            assert (turn == 0) == (cached(response) == 0)
            replicas.setdefault(number, set()).add(response.headers["x-kvikk-replica"])
            prompt += [*alone.token_ids, *fresh_prompt(9)]
    assert all(len(names) == 1 for names in replicas.values())
    assert len(set.union(*replicas.values())) > 1, "one replica did it all"


def test_what_the_ingress_believes_of_the_replicas_is_what_their_engines_hold(
    fleet: LiveFleet,
) -> None:
    for _ in range(4):
        fleet.complete(fresh_prompt(5 * BLOCK_SIZE + 3))
    fleet.wait_until_heard()
    assert all(one["held_blocks"] > 0 for one in fleet.status()["replicas"])


def test_the_formats_are_the_servers(fleet: LiveFleet) -> None:
    asked = {
        "model": "smollm2",
        "max_tokens": 4,
        "messages": [{"role": "user", "content": "What did Viking ships have at the bow?"}],
    }
    message = fleet.http.post("/v1/messages", json=asked).json()
    assert message["type"] == "message"
    chat = fleet.http.post("/v1/chat/completions", json=asked).json()
    assert chat["object"] == "chat.completion"
    fleet.sent_tokens += 2 * chat["usage"]["prompt_tokens"]
    fleet.sent_requests += 2
    assert fleet.http.get("/v1/models").json()["data"][0]["id"] == "smollm2"
    wrong = fleet.http.post("/v1/messages", json={"messages": "x" * 999})
    assert (wrong.status_code, wrong.json()["type"]) == (400, "error")
    fleet.sent_requests += 1  # what makes no sense has no prompt
    story = fleet.http.get(f"/v1/kvikk/requests/{chat['id']}").json()
    assert story["prompt_tokens"] == chat["usage"]["prompt_tokens"]


def test_texts_that_become_vectors_are_accounted_for_and_leave_the_connection_free(
    fleet: LiveFleet,
) -> None:
    before = sum(fleet.wait_until_settled()["by_cause"].values())
    for inputs in ([fresh_prompt(20)], [fresh_prompt(7), fresh_prompt(18), fresh_prompt(1)]):
        for _ in range(2):  # over one connection
            asked = {"model": "smollm2", "input": inputs}
            response = fleet.http.post("/v1/embeddings", json=asked)
            assert response.status_code == 200, response.text
            sent = sum(map(len, inputs))
            assert response.json()["usage"]["prompt_tokens"] == sent
            fleet.sent_requests += 1
            fleet.sent_tokens += sent
            before += sent
    assert sum(fleet.wait_until_settled()["by_cause"].values()) == before


def test_a_response_is_gone_on_from_where_it_was_made(fleet: LiveFleet) -> None:
    first = fleet.http.post(
        "/v1/responses", json={"model": "smollm2", "input": "Ships?", "max_output_tokens": 4}
    ).json()
    second = fleet.http.post(
        "/v1/responses",
        json={
            "model": "smollm2",
            "input": "And how were they steered?",
            "max_output_tokens": 4,
            "previous_response_id": first["id"],
        },
    )
    assert second.status_code == 200, second.text
    for response in (first, second.json()):
        fleet.sent_tokens += response["usage"]["input_tokens"]
        fleet.sent_requests += 1


def test_tenants_share_nothing_and_only_the_operator_sees_the_fleet(fleet: LiveFleet) -> None:
    prompt = fresh_prompt(40)
    with fleet.client("key-of-a") as a, fleet.client("key-of-b") as b:
        for client, hit in ((a, 0), (b, 0), (a, 32), (b, 32)):
            assert cached(client.post("/v1/completions", json=fleet.body(prompt, 2))) == hit
        assert a.get("/v1/kvikk/fleet").status_code == 403
        assert a.get("/metrics").status_code == 403
    with fleet.client("key-of-nobody") as nobody:
        assert nobody.post("/v1/completions", json={}).status_code == 401
    assert "kvikk_router_prompt_tokens_total" in fleet.http.get("/metrics").text


def test_status_shows_where_replicas_run_and_what_they_hold(fleet: LiveFleet) -> None:
    fleet.wait_for(lambda: fleet.num_replicas() == LEAST)
    fleet.wait_until_heard()
    shown = kvikk("fleet", "status", fleet.url, "--api-key", "key-of-operator").stdout
    told = json.loads(
        kvikk("fleet", "status", fleet.url, "--json", KVIKK_API_KEY="key-of-operator").stdout
    )
    assert len(told["replicas"]) == LEAST
    for replica in told["replicas"]:
        row = next(line for line in shown.splitlines() if line.startswith(replica["id"]))
        assert replica["node"][:8] in row
        assert f"{replica['held_blocks']:,}  events" in row


def test_a_tenant_that_has_all_its_places_on_every_replica_is_told_to_come_again(
    fleet: LiveFleet,
) -> None:
    """Eight places on each: a request that one replica refuses is sent to the other first."""
    full = threading.Event()
    held = threading.Semaphore(0)

    def hold(answer: Answer) -> bool:
        if len(answer.pieces) == 1:
            held.release()
        return not full.is_set()

    threads = [
        threading.Thread(target=fleet.stream, args=(fresh_prompt(20), 4000, hold))
        for _ in range(8 * LEAST)
    ]
    for thread in threads:
        thread.start()
    for _ in threads:
        held.acquire()
    refused = fleet.http.post("/v1/completions", json=fleet.body(fresh_prompt(20), 1))
    full.set()
    for thread in threads:
        thread.join()
    assert refused.status_code == 429
    assert "Retry-After" in refused.headers
    assert "this key has 8 requests" in refused.json()["error"]["message"]
    ledger = fleet.wait_until_settled()
    assert ledger["superseded_by_cause"]["refused"] > 0


@pytest.mark.parametrize("header", [{}, {"x-request-disconnect-disabled": "?1"}])
def test_a_client_that_leaves_stops_the_work(fleet: LiveFleet, header: dict[str, str]) -> None:
    """An answer of thousands of tokens, left after the first, whatever the proxy is asked for."""
    fleet.http.headers.update(header)
    answer = fleet.stream(fresh_prompt(40), 4000, on_piece=lambda answer: False)
    for name in header:
        del fleet.http.headers[name]
    fleet.wait_for(lambda: fleet.replica(answer.replica)["engine"]["running_requests"] == 0)
    generated = fleet.replica(answer.replica)["engine"]["generated_tokens"]
    fleet.wait_for(lambda: fleet.replica(answer.replica)["running_requests"] == 0)
    assert fleet.wait_until_settled()
    assert fleet.replica(answer.replica)["engine"]["generated_tokens"] == generated < 4000


def test_a_streams_pieces_come_while_the_engine_works_on_the_rest(fleet: LiveFleet) -> None:
    running: list[int] = []

    def look(answer: Answer) -> bool:
        if len(answer.pieces) == 1:
            running.append(fleet.replica(answer.replica)["engine"]["running_requests"])
        return True

    answer = fleet.stream(fresh_prompt(40), 200, on_piece=look)
    assert running == [1]
    assert answer.is_whole
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == 200


def test_replicas_come_with_waiting_prompts_and_go_without(fleet: LiveFleet) -> None:
    """A few long prompts are more than two replicas are meant to have waiting."""
    fleet.wait_for(lambda: fleet.num_replicas() == LEAST)
    enough = threading.Event()

    def ask_on() -> None:
        while not enough.is_set():
            fleet.complete(fresh_prompt(1000), 1)

    threads = [threading.Thread(target=ask_on) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        fleet.wait_for(lambda: fleet.num_replicas() == MOST)
    finally:
        enough.set()
        for thread in threads:
            thread.join()
    fleet.wait_for(lambda: fleet.num_replicas() == LEAST)


def test_when_a_node_dies_its_streams_end_with_an_error_and_all_others_finish(
    fleet: LiveFleet,
) -> None:
    answers: list[Answer] = []
    begun = threading.Semaphore(0)

    def begin(answer: Answer) -> bool:
        if len(answer.pieces) == 1:
            begun.release()
        return True

    def ask(prompt: list[int]) -> None:
        answers.append(fleet.stream(prompt, 300, on_piece=begin))

    threads = [threading.Thread(target=ask, args=(fresh_prompt(40),)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for _ in threads:
        begun.acquire()
    status = fleet.status()
    nodes = {node.node_id: node for node in fleet.cluster.worker_nodes}
    victim = next(
        one for one in status["replicas"] if one["node"] in nodes and one["running_requests"]
    )
    fleet.cluster.remove_node(nodes[victim["node"]], allow_graceful=False)
    waiting = [threading.Thread(target=fleet.complete, args=(fresh_prompt(40),)) for _ in range(4)]
    for thread in (*waiting, *threads):
        if thread in waiting:
            thread.start()
    for thread in (*waiting, *threads):
        thread.join()
    assert len(answers) == len(threads)
    broken = [answer for answer in answers if answer.replica == victim["id"]]
    assert len(broken) == victim["running_requests"]
    for answer in broken:
        assert not answer.is_whole
        assert answer.error is not None
        assert answer.error["code"] == "replica_failed"
    assert all(answer.is_whole for answer in answers if answer not in broken)
    fleet.wait_for(lambda: victim["id"] not in [one["id"] for one in fleet.status()["replicas"]])
    ledger = fleet.wait_until_settled()
    assert ledger["by_cause"]["lost"] == 40 * len(broken)


def test_the_ledgers_sum_is_what_the_clients_sent(fleet: LiveFleet) -> None:
    """Through all that happened above: answers, clients that left, tenants, a killed node."""
    fleet.complete(fresh_prompt(20))
    ledger = fleet.wait_until_settled()
    assert ledger["requests"] == fleet.sent_requests
    assert sum(ledger["by_cause"].values()) == fleet.sent_tokens
