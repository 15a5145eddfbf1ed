"""vLLM as an upstream, with its own KV events: what the router predicts and what vLLM reports.

    KVIKK_PEERS=… python benchmarks/vllm_events.py [--replicas 2] [--conversations 6] [--turns 4]

vLLM is the CPU build of ``peers/``. The router tokenises with the same model and keys blocks by its
own digest of the tokens in the events; every answer's ``cached_tokens`` is held against that.
"""

import argparse
import json
import sys
import time
from contextlib import ExitStack
from dataclasses import replace

import httpx

from fleet import Conversation, Counts, Process, started, take_turn, tokens_of
from kvikk.text.words import text_of
from models import form_of
from servers import KINDS, free_port, running


def main() -> None:
    """Converse, and print the agreement."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--conversations", type=int, default=6)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--answer-tokens", type=int, default=8)
    parser.add_argument("--policy", default="weighted")
    options = parser.parse_args()
    folder = form_of(options.model, "folder")
    kind = KINDS["vLLM, bf16"]
    if not kind.is_installed:
        sys.exit("vLLM is not installed; see peers/install.sh")
    with ExitStack() as stack:
        fleet = []
        for _ in range(options.replicas):
            publish, replay = free_port(), free_port()
            config = {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": f"tcp://*:{publish}",
                "replay_endpoint": f"tcp://*:{replay}",
            }
            telling = replace(
                kind,
                arguments=f"{kind.arguments} --kv-events-config "
                + json.dumps(config, separators=(",", ":")),
            )
            server = stack.enter_context(
                running(telling, options.model, threads=1, slots=8, context=8192)
            )
            events = f"tcp://127.0.0.1:{publish},tcp://127.0.0.1:{replay}"
            fleet.append(Process(server.base_url.removesuffix("/v1"), events))
        arguments = ["route", "--port", "0", "--policy", options.policy, "--tokenizer", str(folder)]
        for one in fleet:
            arguments += ["--replica", one.url, "--kv-events", f"{one.url}={one.events}"]
        router = stack.enter_context(started(arguments))
        http = stack.enter_context(httpx.Client(base_url=router.url, timeout=300, trust_env=False))
        while not (models := http.get("/v1/models").json()["data"]):
            time.sleep(0.1)
        conversations = [
            Conversation([{"role": "system", "content": text_of(100, "vllm", number)}])
            for number in range(options.conversations)
        ]
        counts = Counts()
        for turn in range(options.turns):
            for number, conversation in enumerate(conversations):
                conversation.messages.append({"role": "user", "content": text_of(20, number, turn)})
                take_turn(http, models[0]["id"], options.answer_tokens, conversation, counts)
        books = http.get("/v1/kvikk/fleet").json()
    replicas = books["replicas"]
    agreement = sum(one["agreement"] * tokens_of(one) for one in replicas)
    print(
        json.dumps(
            {
                "version": kind.version(),
                "replicas": len(replicas),
                "answers": sum(one["answers"] for one in replicas),
                "prompt_tokens": counts.prompt_tokens,
                "predicted_tokens": sum(one["predicted_tokens"] for one in replicas),
                "reported_tokens": sum(one["reported_tokens"] for one in replicas),
                "agreement": agreement / max(1, sum(map(tokens_of, replicas))),
                "known_by": sorted({one["source"] for one in replicas}),
                "capacity_tokens": [one["capacity_tokens"] for one in replicas],
                "rates": books["rates"],
                "alarms": [one["alarm"] for one in replicas],
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
