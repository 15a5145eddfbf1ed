"""Which engine wrote a log, and all its figures about the cache beside ours."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from kvikk.errors import ModelError
from kvikk.shapes.start_logs import llama_cpp, sglang, vllm
from kvikk.shapes.start_logs.records import Comparison, Subject

_ENGINES: Mapping[str, Callable[[Sequence[str], Subject], Iterator[Comparison]]] = {
    "vLLM": vllm.check,
    "SGLang": sglang.check,
    "llama.cpp": llama_cpp.check,
}
# Beyond this it is no start-up log.
_LARGEST_LOG_BYTES = 256 * 2**20


def check_log(path: Path, subject: Subject) -> tuple[str, tuple[Comparison, ...]]:
    """The engine's name and its printed figures, each with ours.

    Raises ModelError if the file cannot be read or says nothing about a cache.
    """
    try:
        if path.stat().st_size > _LARGEST_LOG_BYTES:
            raise ModelError(f"{path}: larger than {_LARGEST_LOG_BYTES >> 20} MiB; cut it first")
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    found = {name: tuple(check(lines, subject)) for name, check in _ENGINES.items()}
    engine, comparisons = max(found.items(), key=lambda item: len(item[1]))
    if not comparisons:
        raise ModelError(
            f"{path}: no line about a KV cache that vLLM, SGLang or llama.cpp print when they start"
        )
    return engine, comparisons
