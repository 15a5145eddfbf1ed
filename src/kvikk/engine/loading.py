"""From options to an engine that is ready: find the model, plan the memory, load both."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from kvikk.backends.base import Backend, Plan
from kvikk.engine.engine import Engine
from kvikk.engine.host_memory import available_bytes
from kvikk.engine.lower_tiers import make_tiering
from kvikk.engine.memory import MemoryReport, plan_memory
from kvikk.engine.options import DEFAULT_KV_DTYPES, EngineOptions
from kvikk.engine.speculation import MAX_DRAFT_TOKENS, Speculation
from kvikk.errors import ModelError, RequestError
from kvikk.files.adapters import find_adapter
from kvikk.files.sources import resolve
from kvikk.models.adapter import Adapter
from kvikk.models.adapter_reader import load_adapter
from kvikk.models.decoder import Decoder
from kvikk.models.load import load_decoder
from kvikk.shapes.shape import cache_groups
from kvikk.text.chat import ChatTemplate, load_chat_template
from kvikk.text.tokenizer import Tokenizer, load_tokenizer

Progress = Callable[[str], None]


@dataclass(frozen=True)
class LoadedEngine:
    """An engine and what belongs to its model.

    ``model`` is what the user called it; ``chat_template`` None where the model has none.
    """

    engine: Engine
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    memory: MemoryReport
    model: str
    backend: str
    options: EngineOptions
    load_s: float
    decoder: Decoder

    def read_adapter(self, path: str) -> Adapter:
        """The adapter in the folder ``path``, for this model; may be called in any thread.

        Raises ModelError if it cannot be run.
        """
        return load_adapter(find_adapter(path), self.decoder)


def load_engine(options: EngineOptions, progress: Progress = lambda line: None) -> LoadedEngine:
    """Load a model and make an engine for it; ``progress`` is told in a few words what is going on.

    Raises ModelError, in one line, for whatever is wrong with the model, the options or the memory.
    """
    started_s = time.monotonic()
    # Before anything is loaded: what the plan may spend is what is free without us.
    free_bytes = available_bytes()
    if free_bytes is not None:
        free_bytes -= options.host_tier_bytes or 0
    source = resolve(options.model)
    progress("reading the tokeniser")
    tokenizer = load_tokenizer(source)
    chat_template = load_chat_template(source, tokenizer, options.chat_template)
    progress("reading the weights")
    decoder = load_decoder(source)
    backend = _make_backend(options, progress)
    context_tokens = decoder.context_tokens
    # The reference keeps its bits to rounding only: there a guess could change an answer.
    speculates = options.speculation and options.use_cache and backend.name != "reference"
    draft = Plan(
        groups=cache_groups(decoder.shape),
        num_blocks=(),
        block_size=options.block_size,
        kv_dtype=options.kv_dtype or DEFAULT_KV_DTYPES[backend.name],
        max_batch_tokens=options.step_tokens,
        # Each sequence may want a row of logits, and each guess in a step one more.
        max_batch_sequences=options.max_running + (MAX_DRAFT_TOKENS if speculates else 0),
        max_context_tokens=min(options.max_context_tokens or context_tokens, context_tokens),
    )
    plan, memory = plan_memory(
        backend,
        decoder,
        draft,
        kv_memory_bytes=options.kv_memory_bytes,
        available_bytes=free_bytes,
        max_running=options.max_running,
    )
    progress("loading the weights")
    backend.load(decoder, plan)
    block_bytes = tuple(group.block_bytes for group in memory.groups)
    engine = Engine(
        backend,
        plan,
        model_digest=decoder.content_digest,
        vocabulary_size=decoder.vocabulary_size,
        tokenizer=tokenizer,
        prefix_caching=options.prefix_caching,
        use_cache=options.use_cache,
        step_tokens=options.step_tokens,
        max_running=options.max_running,
        max_queue=options.max_queue,
        speculation=Speculation() if speculates else None,
        block_bytes=block_bytes,
        ledger_memory_bytes=options.ledger_memory_bytes,
        tenant_share=options.tenant_share,
        eviction=options.eviction,
        tiering=make_tiering(
            options,
            backend,
            plan,
            model_digest=decoder.content_digest,
            block_bytes=block_bytes,
        ),
    )
    for name, path in options.adapters:
        progress(f"reading the adapter {name}")
        try:
            engine.adapters.load(name, load_adapter(find_adapter(path), decoder))
        except RequestError as error:
            raise ModelError(f"--adapter {name}={path}: {error}") from None
    return LoadedEngine(
        engine,
        tokenizer,
        chat_template,
        memory,
        options.model,
        backend.name,
        options,
        time.monotonic() - started_s,
        decoder,
    )


def _make_backend(options: EngineOptions, progress: Progress) -> Backend:
    # Each is imported where it is chosen: the one in numpy needs no compiler, the other does.
    if options.backend == "reference":
        from kvikk.backends.reference.backend import ReferenceBackend

        return ReferenceBackend()
    from kvikk.backends.cpu.backend import CpuBackend

    def tell(name: str, done: int, total: int) -> None:
        if done < total:
            progress(f"making kernels ready, {done + 1} of {total}: {name}")

    return CpuBackend(options.threads, tell)
