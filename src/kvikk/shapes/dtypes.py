"""Data types of cached elements, by name, and what a token's keys or values take in each.

Sources: llama.cpp's block formats (``ggml-common.h``), vLLM's ``v1/kv_cache_interface.py``.
"""

from dataclasses import dataclass

from kvikk.errors import ModelError


@dataclass(frozen=True)
class CacheDtype:
    """A format for cached elements.

    ``block_elements`` elements take ``block_bytes``; every head of every token takes another
    ``head_scale_bytes``.
    """

    name: str
    block_bytes: int
    block_elements: int = 1
    head_scale_bytes: int = 0

    def row_bytes(self, elements: int, heads: int = 1) -> int:
        """Bytes of one token's ``elements``, which ``heads`` heads share equally.

        Raises ModelError if the elements do not fill whole blocks.
        """
        if elements % self.block_elements:
            raise ModelError(
                f"{self.name} packs {self.block_elements} elements together; "
                f"rows of {elements} elements cannot be stored in it"
            )
        scales = heads * self.head_scale_bytes if elements else 0
        return elements // self.block_elements * self.block_bytes + scales


# DeepSeek's latents in fp8 with scales, their rotated part in bf16.
PACKED_LATENTS = "fp8_ds_mla"

_DTYPES = {
    dtype.name: dtype
    for dtype in (
        CacheDtype("f32", 4),
        CacheDtype("f16", 2),
        CacheDtype("bf16", 2),
        CacheDtype("fp8", 1),
        CacheDtype("int8", 1),
        CacheDtype("int4", 1, 2),
        # llama.cpp: scales of 16 bits (q5 and q4_1: two) and the fifth bits beside the elements.
        CacheDtype("q8_0", 34, 32),
        CacheDtype("q5_1", 24, 32),
        CacheDtype("q5_0", 22, 32),
        CacheDtype("q4_1", 20, 32),
        CacheDtype("q4_0", 18, 32),
        CacheDtype("iq4_nl", 18, 32),
        # vLLM: a float32 scale for each head of each token; fp4 with an fp8 scale for 16 elements.
        CacheDtype("int8_per_token_head", 1, head_scale_bytes=4),
        CacheDtype("fp8_per_token_head", 1, head_scale_bytes=4),
        CacheDtype("nvfp4", 9, 16),
        # Packed latents state their bytes themselves; what is not packed is plain fp8.
        CacheDtype(PACKED_LATENTS, 1),
    )
}

_ALIASES = {
    "float32": "f32",
    "fp32": "f32",
    "float": "f32",
    "float16": "f16",
    "fp16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}

DTYPE_NAMES = tuple(_DTYPES)

# What kvikk's own backends keep by the plain names: a bfloat16 scale for each head of each token;
# of int4, a scale and a minimum for 32 elements.
_KVIKK_DTYPES = {
    dtype.name: dtype
    for dtype in (
        CacheDtype("f32", 4),
        CacheDtype("bf16", 2),
        CacheDtype("int8", 1, head_scale_bytes=2),
        CacheDtype("fp8", 1, head_scale_bytes=2),
        CacheDtype("int4", 20, 32),
    )
}
KVIKK_DTYPE_NAMES = tuple(_KVIKK_DTYPES)


@dataclass(frozen=True)
class KvDtypes:
    """The types of keys and of values, which may differ."""

    key: CacheDtype
    value: CacheDtype


def cache_dtype(name: str) -> CacheDtype:
    """The type ``name``, also by its name in torch or vLLM. Raises ModelError."""
    plain = name.strip().lower().removeprefix("torch.")
    plain = _ALIASES.get(plain, plain)
    if plain not in _DTYPES:
        raise ModelError(f"no data type {name!r}; known: {' '.join(DTYPE_NAMES)}")
    return _DTYPES[plain]


def kvikk_dtype(name: str) -> CacheDtype:
    """What kvikk's own backends keep by this name, scales included.

    Raises ModelError for a type that they do not have.
    """
    if name not in _KVIKK_DTYPES:
        raise ModelError(f"KV data type {name!r} is not one of {', '.join(KVIKK_DTYPE_NAMES)}")
    return _KVIKK_DTYPES[name]


def as_kvikk_keeps(dtypes: KvDtypes) -> KvDtypes:
    """The same types with the scales that kvikk's own backends keep beside their elements."""
    return KvDtypes(*(_KVIKK_DTYPES.get(one.name, one) for one in (dtypes.key, dtypes.value)))


def kv_dtypes(key: str, value: str | None = None) -> KvDtypes:
    """The types of keys and values by name; values as keys unless told. Raises ModelError."""
    return KvDtypes(cache_dtype(key), cache_dtype(key if value is None else value))
