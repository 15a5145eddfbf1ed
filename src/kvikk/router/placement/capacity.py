"""How many tokens a replica's cache holds, by its own word."""

import re
from functools import lru_cache

import httpx

_TIMEOUT_S = 2.0
_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


async def ask_capacity(url: str, key: str | None) -> int | None:
    """Tokens, or None where the replica does not say: as kvikk tells, else as vLLM does."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        reply = await _client().get(f"{url}/v1/kvikk/cache", headers=headers)
        if reply.status_code == 200:
            return _of_kvikk(reply.json())
        reply = await _client().get(f"{url}/metrics", headers=headers)
        return _of_vllm(reply.text) if reply.status_code == 200 else None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return None


def _of_kvikk(value: object) -> int | None:
    """What groups that keep all tokens hold: the smallest bounds a hit."""
    match value:
        case {"block_size": int(size), "groups": list(groups)}:
            blocks = [
                (group.get("window_tokens"), group["total_blocks"])
                for group in groups
                if isinstance(group, dict) and isinstance(group.get("total_blocks"), int)
            ]
            whole = [total for window, total in blocks if window is None]
            return size * min(whole or [max((total for _, total in blocks), default=0)]) or None
    return None


def _of_vllm(metrics: str) -> int | None:
    found = _CONFIG.search(metrics)
    labels = dict(_LABEL.findall(found[1])) if found else {}
    try:
        return int(labels["num_gpu_blocks"]) * int(labels["block_size"]) or None
    except (KeyError, ValueError):
        return None


@lru_cache(maxsize=1)
def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False)
