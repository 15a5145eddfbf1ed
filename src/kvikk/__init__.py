"""kvikk: an LLM serving stack built around one object, the KV cache."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvikk.engine.async_llm import AsyncLLM as AsyncLLM
    from kvikk.engine.llm import LLM as LLM

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLM", "__version__"]


def __getattr__(name: str) -> Any:
    # The engine is an extra and takes a moment to import; those who only size or audit never pay.
    if name == "LLM":
        from kvikk.engine.llm import LLM

        return LLM
    if name == "AsyncLLM":
        from kvikk.engine.async_llm import AsyncLLM

        return AsyncLLM
    raise AttributeError(f"module 'kvikk' has no attribute {name!r}")
