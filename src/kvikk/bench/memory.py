"""The proof: the tensors that transformers' cache holds, and the blocks of ours, by the formula.

A model is built with random weights, since a cache's size does not depend on them; vocabulary and
feed-forward layers, of which nothing is cached, are cut. It then generates token by token, and at
each checkpoint every tensor within reach of the cache is counted.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvikk.bench.memory_families import TINY
from kvikk.errors import ModelError
from kvikk.files.sources import resolve
from kvikk.shapes.config import text_config
from kvikk.shapes.dtypes import as_kvikk_keeps, cache_dtype, kv_dtypes
from kvikk.shapes.families import read_shape
from kvikk.shapes.reserve import kvikk
from kvikk.shapes.reserve import transformers as rules
from kvikk.shapes.reserve.convolutions import convolution_tokens
from kvikk.shapes.reserve.records import (
    layers_of,
    with_float_states,
    with_plain_indexers,
)
from kvikk.shapes.shape import ModelShape

Config = Mapping[str, Any]

MOST_TOKENS = 100_000
# What models call their cache, in transformers' order of preference.
_CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params")
# What a configuration says of its file, which the constructor of its class does not take.
_NOT_TAKEN = ("architectures", "quantization_config", "torch_dtype", "dtype", "auto_map")

_CUT = {
    "vocab_size": 128,
    "intermediate_size": 64,
    "n_inner": 64,
    "ffn_dim": 64,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size_per_layer_input": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Checkpoint:
    """The cache when a conversation holds ``num_tokens``: its bytes, and the formula's."""

    num_tokens: int
    held_bytes: int
    formula_bytes: int


@dataclass(frozen=True)
class MemoryProof:
    """One model in one engine. ``rules`` say how that engine's cache differs from the sum."""

    model: str
    engine: str
    dtype: str
    checkpoints: tuple[Checkpoint, ...]
    rules: tuple[str, ...]
    layers: str

    @property
    def is_exact(self) -> bool:
        """Whether tensors and formula agree to the byte at every checkpoint."""
        return all(point.held_bytes == point.formula_bytes for point in self.checkpoints)


def prove_transformers(
    name: str, config: Config, checkpoints: Sequence[int], num_layers: int | None = None
) -> MemoryProof:
    """Generate with transformers\' dynamic cache in float32 and count its tensors.

    ``num_layers`` keeps only that many layers of the model. Raises ModelError if transformers does
    not know the family or cannot build it.
    """
    import torch

    torch.set_num_threads(1)  # nothing here is worth sharing out
    text = {**text_config(config)}
    if num_layers is not None:
        text |= {"num_hidden_layers": num_layers, "n_layer": num_layers}
        text.pop("layer_types", None)
    shape = read_shape(text)
    settings = rules.TransformersSettings(convolution_tokens=convolution_tokens(text))
    layers = layers_of(with_plain_indexers(with_float_states(shape)), kv_dtypes("f32"))
    model = _build(name, text)
    points = []
    for num_tokens, cache in _generate(model, checkpoints):
        tensors = {id(tensor): tensor for tensor in _tensors(cache) if tensor.dim()}
        held = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        points.append(
            Checkpoint(num_tokens, held, rules.reserve(layers, num_tokens, settings).total_bytes)
        )
    kinds = ", ".join(sorted({part.kind for layer in layers for part in layer}))
    rule = rules.reserve(layers, points[-1].num_tokens, settings).rules
    if num_layers is not None:
        rule = (*rule, _scaled(points, num_layers, read_shape(config)))
    version = f"transformers {_version()}, torch {torch.__version__}"
    return MemoryProof(name, version, "f32", tuple(points), rule, f"{len(layers)} layers: {kinds}")


def prove_kvikk(
    model: str,
    checkpoints: Sequence[int],
    *,
    kv_dtype: str = "bf16",
    backend: str = "auto",
    progress: Callable[[str], None] = lambda line: None,
) -> MemoryProof:
    """Generate with our engine and count the blocks of its pools that are in use.

    Raises ModelError if the engine cannot run the model.
    """
    # Compilers and kernels are imported with the engine, which only this needs.
    from kvikk import __version__
    from kvikk.engine.loading import load_engine
    from kvikk.engine.options import EngineOptions
    from kvikk.engine.requests import Generation, Request

    options = EngineOptions(
        model=model,
        backend=backend,  # type: ignore[arg-type]  # checked by EngineOptions
        kv_dtype=kv_dtype,
        max_context_tokens=checkpoints[-1] + 2,
        max_running=1,
        prefix_caching=False,
        speculation=False,
    )
    loaded = load_engine(options, progress)
    engine, groups = loaded.engine, loaded.memory.groups
    shape = read_shape(resolve(model).config)
    layers = layers_of(shape, as_kvikk_keeps(kv_dtypes(kv_dtype)))
    prompt = tuple(3 + index % 50 for index in range(checkpoints[0]))
    engine.add(Request("proof", prompt, Generation(max_tokens=None, ignore_eos=True)))
    points: list[Checkpoint] = []
    while len(points) < len(checkpoints):
        engine.step()
        num_tokens = engine.stats().computed_tokens
        if num_tokens == checkpoints[len(points)]:
            held = sum(
                usage.live_blocks * group.block_bytes
                for usage, group in zip(engine.cache.usage_by_group(), groups, strict=True)
            )
            formula = kvikk.held_bytes(layers, num_tokens, options.block_size)
            points.append(Checkpoint(num_tokens, held, formula))
    engine.abort("proof")
    engine.step()
    rule = (f"blocks of {options.block_size} tokens; a window gives back what it has left",)
    description = f"kvikk {__version__}, {loaded.backend} backend"
    return MemoryProof(model, description, kv_dtype, tuple(points), rule, f"{len(layers)} layers")


def _build(name: str, text: Config) -> Any:
    """The model in transformers, with what is not cached cut."""
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    talk: Any = transformers.logging
    talk.set_verbosity_error()
    family = str(text.get("model_type"))
    if family not in CONFIG_MAPPING:
        raise ModelError(f"{name}: transformers knows no family {family!r}")
    kept = {key: value for key, value in text.items() if key not in ("model_type", *_NOT_TAKEN)}
    cut = {key: value for key, value in _CUT.items() if key in kept or key.endswith("_token_id")}
    cut["vocab_size"] = _CUT["vocab_size"]
    try:
        config = CONFIG_MAPPING[family](**{**kept, **cut})
        torch.manual_seed(0)
        automatic: Any = transformers.AutoModelForCausalLM
        model = automatic.from_config(config, attn_implementation="eager", dtype=torch.float32)
    except Exception as error:
        # A library's constructors raise anything at all for numbers that do not go together.
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{name}: transformers cannot build it: {reason}") from None
    evaluated: Any = model.eval()
    return evaluated


def _generate(model: Any, checkpoints: Sequence[int]) -> Iterator[tuple[int, object]]:
    """Read a prompt of the first checkpoint's length, then go on; yield the cache at each."""
    import torch

    takes = inspect.signature(model.forward).parameters
    name = next(name for name in _CACHE_ARGUMENTS if name in takes)
    token_ids = torch.arange(checkpoints[0])[None] % 100 + 3
    cache: Any = None
    with torch.inference_mode():
        for num_tokens in range(checkpoints[0], checkpoints[-1] + 1):
            out = model(token_ids, use_cache=True, **{name: cache})
            cache = getattr(out, name)
            token_ids = out.logits[:, -1:].argmax(-1)
            if num_tokens in checkpoints:
                yield num_tokens, cache


def _tensors(held: object) -> Iterator[Any]:
    """Every tensor within reach of a cache. Those without dimensions are counters."""
    import torch

    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, Mapping):
        for value in held.values():
            yield from _tensors(value)
    elif isinstance(held, list | tuple):
        for value in held:
            yield from _tensors(value)
    elif (
        type(held).__module__.startswith("transformers.")
        and hasattr(held, "__dict__")
        and not type(held).__name__.endswith("Config")
    ):
        yield from _tensors(vars(held))


def _scaled(points: Sequence[Checkpoint], num_layers: int, whole: ModelShape) -> str:
    """What a token of a slice comes to in all layers, in the type that the model is kept in."""
    first, last = points[0], points[-1]
    a_token = (last.held_bytes - first.held_bytes) / (last.num_tokens - first.num_tokens)
    dtype = cache_dtype(whole.kv_dtype)
    scaled = a_token / num_layers * whole.num_layers * dtype.block_bytes / 4
    return f"in all {whole.num_layers} layers, in {dtype.name}: {scaled:,.0f} bytes a token"


def _version() -> str:
    import transformers

    return str(transformers.__version__)


def prove(
    model: str,
    *,
    num_tokens: int,
    num_layers: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> list[MemoryProof]:
    """Both engines' proofs for a model; ours only for those that it runs whole.

    ``model`` is anything ``resolve`` finds, or the name of a tiny family. Raises ModelError.
    """
    checkpoints = checkpoints_of(num_tokens)
    if model in TINY and not Path(model).exists():
        config = {"model_type": model, **TINY[model]}
        return [prove_transformers(f"tiny {model}", config, checkpoints)]
    source = resolve(model, weights=False)
    progress("generating with transformers")
    proofs = [prove_transformers(model, source.config, checkpoints, num_layers)]
    if num_layers is None and source.weight_files:
        progress("generating with kvikk")
        proofs.append(prove_kvikk(model, checkpoints, progress=progress))
    return proofs


def checkpoints_of(num_tokens: int) -> tuple[int, ...]:
    """Four lengths up to ``num_tokens``. Raises ModelError if that is too few to tell anything."""
    if not 8 <= num_tokens <= MOST_TOKENS:
        raise ModelError(f"{num_tokens} tokens: from 8 to {MOST_TOKENS:,} can be generated")
    return tuple(sorted({num_tokens // 4, num_tokens // 2, num_tokens * 3 // 4, num_tokens}))
