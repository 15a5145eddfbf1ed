"""Other forms in which engines have kept the same model's cache, for a log to be explained by."""

from dataclasses import replace

from kvikk.shapes.config import Config, read_int, text_config
from kvikk.shapes.drafts import mtp_layers, with_mtp
from kvikk.shapes.shape import LayerKind, ModelShape


def variants(config: Config, shape: ModelShape) -> tuple[tuple[str, ModelShape], ...]:
    """Forms that differ from ``shape``, each with its rule in words."""
    found: list[tuple[str, ModelShape]] = []
    drafts = mtp_layers(config)
    if drafts:
        found.append((f"with {drafts} MTP layer{'s' * (drafts > 1)}", with_mtp(shape, drafts)))
    if any(layer.kind is LayerKind.LATENT for layer in shape.layers):
        found += _latent_forms(text_config(config), shape)
    return tuple(found)


def _latent_forms(text: Config, shape: ModelShape) -> list[tuple[str, ModelShape]]:
    """Latents expanded to keys and values of all heads; or kept once as keys and once as values."""
    names = ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    heads, plain, rotated, value = (read_int(text, name, default=0) for name in names)
    forms: list[tuple[str, ModelShape]] = []
    if heads and value:
        keys, values = heads * (plain + rotated), heads * value
        forms.append(("latents expanded to heads", _latents_as(shape, keys, values, heads)))
    latent = next(layer for layer in shape.layers if layer.kind is LayerKind.LATENT)
    rank = read_int(text, "kv_lora_rank", default=latent.key_elements)
    twice = _latents_as(shape, latent.key_elements, rank, 1)
    forms.append(("latents kept as keys and again as values", twice))
    return forms


def _latents_as(shape: ModelShape, keys: int, values: int, kv_heads: int) -> ModelShape:
    return replace(
        shape,
        layers=tuple(
            replace(
                layer,
                kind=LayerKind.FULL,
                key_elements=keys,
                value_elements=values,
                kv_heads=kv_heads,
                packed_bytes=None,
            )
            if layer.kind is LayerKind.LATENT
            else layer
            for layer in shape.layers
        ),
    )
