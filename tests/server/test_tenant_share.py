"""Two keys behind one pool, one of them flooding it: what the quiet one still hits."""

from pathlib import Path

from kvikk.engine.options import EngineOptions
from kvikk.server.options import ServerOptions
from tests.server.live import LiveServer, start

QUIET, FLOODING = "key-of-the-quiet-one", "key-of-the-flooding-one"
SYSTEM = "You help at the harbour office. Be brief, be kind, and name the berth first. " * 8
MODEL = "tiny"


def send(live: LiveServer, key: str, prompt: str) -> tuple[int, int]:
    """Prompt tokens, and those that were reused."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "ignore_eos": True}
    headers = {"Authorization": f"Bearer {key}"}
    usage = live.post("/v1/completions", body, headers=headers).json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def rounds(model: Path, share: float) -> tuple[float, float]:
    """Hit rates, by tokens, of the quiet tenant and of the other, over eight rounds."""
    engine = EngineOptions(
        str(model),
        "reference",
        kv_memory_bytes=512 << 10,
        max_context_tokens=512,
        tenant_share=share,
    )
    totals = {QUIET: [0, 0], FLOODING: [0, 0]}
    with start(ServerOptions(engine, port=0, api_keys=(QUIET, FLOODING))) as live:

        def count(key: str, prompt: str) -> None:
            for place, tokens in enumerate(send(live, key, prompt)):
                totals[key][place] += tokens

        for turn in range(8):
            count(QUIET, f"{SYSTEM}Question {turn}: where is the lighthouse?")
            for flood in range(4):  # more than the pool holds
                count(FLOODING, f"{turn} and {flood}: {SYSTEM}")
    quiet, flooding = (cached / tokens for tokens, cached in totals.values())
    return quiet, flooding


def test_a_share_keeps_a_quiet_tenants_prompt_from_anothers_flood(tiny_model: Path) -> None:
    without, _ = rounds(tiny_model, 0.0)
    with_share, flooding = rounds(tiny_model, 0.4)
    print(f"quiet: {without:.3f} without, {with_share:.3f} with; flooding {flooding:.3f}")
    assert without == 0
    # All but its first prompt, and of each the end that is new.
    assert with_share > 0.75
