"""A model so small that prompts of thousands of tokens cost nothing, and texts for it.

Its words are one token each, its answers noise. What a provider bills does not depend on either.
"""

import random
from itertools import product
from pathlib import Path

from kvikk.engine.options import EngineOptions
from kvikk.files.random_models import SHAPES, write_random_model

_SYLLABLES = ["".join(pair) for pair in product("bdfgklmnprstvz", "aeiou")]
_WORDS = ["".join(pair) for pair in product(_SYLLABLES, repeat=2)][:3000]


def write_tiny_model(folder: Path) -> Path:
    """A Llama of two layers in a folder called ``tiny``; returns the folder."""
    folder = folder / "tiny"
    folder.mkdir()
    shape = {
        **SHAPES["smollm2-135m"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 16384,
        "vocab_size": 256 + len(_WORDS),
    }
    write_random_model(folder, shape)
    # Nothing between a role and its words, so that an answer comes back as it was generated.
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    return folder


def tiny_engine(folder: Path, **options) -> EngineOptions:
    options = {"threads": 1, "kv_memory_bytes": 64 << 20, "step_tokens": 2048} | options
    return EngineOptions(model=str(folder), **options)


def words(seed: object, count: int) -> str:
    """``count`` words, one token each behind a space; another seed begins otherwise."""
    chance = random.Random(str(seed))
    return " ".join(chance.choices(_WORDS, k=count))
