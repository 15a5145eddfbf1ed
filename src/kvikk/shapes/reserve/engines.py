"""All engines behind one call, by the names of ``kvikk size --engine``."""

from dataclasses import dataclass, replace

from kvikk.errors import ModelError
from kvikk.shapes.dtypes import KvDtypes, as_kvikk_keeps, kv_dtypes
from kvikk.shapes.reserve import kvikk, llama_cpp, sglang, transformers, vllm
from kvikk.shapes.reserve.records import (
    Reserved,
    layers_of,
    with_float_states,
    with_plain_indexers,
)
from kvikk.shapes.shape import ModelShape

ENGINES = ("logical", "kvikk", "vllm", "sglang", "llamacpp", "transformers")


@dataclass(frozen=True)
class EngineOptions:
    """What one may say about how an engine is started; None is the engine's own default.

    ``tp`` and ``dp_attention`` spread a model over devices; everything reserved is on one of them.
    ``slots`` is llama.cpp's ``--parallel``, among which it divides the context. The model's
    convolutions look back ``convolution_tokens``.
    """

    tp: int = 1
    dp_attention: bool = False
    block_size: int | None = None
    step_tokens: int | None = None
    slots: int = 1
    convolution_tokens: int = 3


def reserve(
    engine: str,
    shape: ModelShape,
    dtypes: KvDtypes | None,
    context_tokens: int,
    options: EngineOptions,
) -> Reserved:
    """What ``engine`` sets aside on one rank for a conversation of ``context_tokens``.

    For llama.cpp that is the whole of ``-c context_tokens``, all slots together. Raises ModelError
    for an unknown engine and where the model cannot be divided among the ranks.
    """
    if engine == "llamacpp":
        shape = with_float_states(shape)
    plain = dtypes or kv_dtypes(shape.kv_dtype)
    if engine == "kvikk":
        dtypes = as_kvikk_keeps(plain)
    if engine == "transformers":
        shape = with_plain_indexers(shape)
    layers = layers_of(shape, dtypes, tp=options.tp, dp_attention=options.dp_attention)
    block_size, step_tokens = options.block_size, options.step_tokens
    match engine:
        case "logical":
            parts = [part for layer in layers for part in layer]
            total = sum(part.entries_at(context_tokens) * part.bytes_per_entry for part in parts)
            return Reserved("logical", total, ("the arithmetic alone",))
        case "kvikk":
            ours = kvikk.KvikkSettings()
            reserved = kvikk.reserve(
                layers,
                context_tokens,
                kvikk.KvikkSettings(block_size or ours.block_size, step_tokens or ours.step_tokens),
            )
            if dtypes != plain:
                rule = f"{plain.key.name} with the scales that are kept beside it"
                return replace(reserved, rules=(*reserved.rules, rule))
            return reserved
        case "vllm":
            theirs = vllm.VllmSettings()
            return vllm.reserve(
                layers,
                context_tokens,
                vllm.VllmSettings(
                    block_size or theirs.block_size,
                    step_tokens or theirs.max_num_batched_tokens,
                    convolution_tokens=options.convolution_tokens,
                ),
            )
        case "sglang":
            return sglang.reserve(layers, context_tokens, sglang.SglangSettings(block_size or 1))
        case "llamacpp":
            batch_tokens = step_tokens or llama_cpp.LlamaCppSettings().batch_tokens
            settings = llama_cpp.LlamaCppSettings(options.slots, batch_tokens=batch_tokens)
            return llama_cpp.reserve(layers, context_tokens, settings)
        case "transformers":
            return transformers.reserve(
                layers,
                context_tokens,
                transformers.TransformersSettings(convolution_tokens=options.convolution_tokens),
            )
    raise ModelError(f"no engine {engine!r}; known: {', '.join(ENGINES)}")
