"""From what a user writes to what is sized: amounts, devices, models and their weights."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvikk.errors import ModelError
from kvikk.files.sources import ModelSource, resolve
from kvikk.shapes.accelerators import accelerator
from kvikk.shapes.config import Config
from kvikk.shapes.drafts import with_draft, with_mtp
from kvikk.shapes.dtypes import kv_dtypes
from kvikk.shapes.families import read_shape
from kvikk.shapes.quantities import parse_bytes
from kvikk.shapes.reserve.convolutions import convolution_tokens
from kvikk.shapes.reserve.engines import EngineOptions
from kvikk.shapes.shape import ModelShape
from kvikk.shapes.sizing import MOST_TOKENS, Choices, Sizing
from kvikk.shapes.weights import weight_bytes
from kvikk.shapes.what_if import (
    changed_config,
    check_changed,
    parse_changes,
    takes_windows_away,
    windows_asked_for,
    with_windows,
    without_windows,
)

# An exbibyte: no device has it, and no amount beyond it is meant.
_MOST_BYTES = 2**60
_TOKENS = re.compile(r"(\d+)\s*([kKmM]?)")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?(?:/s)?", re.IGNORECASE)
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def parse_tokens(text: str) -> int:
    """Tokens from ``8192``, ``8,192``, ``128k`` (131,072) or ``1m``. Raises ModelError."""
    match = _TOKENS.fullmatch(text.strip().replace(",", "").replace("_", ""))
    if match is None:
        raise ModelError(f"{text!r} is no number of tokens; write for example 8192 or 128k")
    tokens = int(match[1][:20]) * {"": 1, "k": 2**10, "m": 2**20}[match[2].lower()]
    if not 1 <= tokens <= MOST_TOKENS:
        raise ModelError(f"a context of {text} tokens: from 1 to {MOST_TOKENS:,} is possible")
    return tokens


def parse_memory(text: str, what: str) -> int:
    """Bytes of ``80GB`` and the like, in binary units, of a plausible size. Raises ModelError."""
    size = parse_bytes(text)
    if size > _MOST_BYTES:
        raise ModelError(f"{what} of {text}: more than any machine has")
    return size


def parse_bandwidth(text: str) -> float:
    """Bytes a second from ``3.35TB/s``: decimal, as data sheets say it. Raises ModelError."""
    match = _RATE.fullmatch(text.strip())
    rate = float(match[1]) * _DECIMAL[match[2].lower()] if match else 0.0
    if not 0 < rate <= _MOST_BYTES:
        raise ModelError(f"{text!r} is no bandwidth; write for example 3.35TB/s or 900GB/s")
    return rate


def make_choices(
    *,
    context: str | None,
    memory: str | None,
    reserve: str,
    engine: str,
    gpu: str | None,
    bandwidth: str | None,
    price_per_hour: float | None,
    conversations: int | None,
    options: EngineOptions,
) -> Choices:
    """Choices from options as they are written; a named device gives what is not.

    Raises ModelError for what makes no sense.
    """
    if price_per_hour is not None and not 0 <= price_per_hour < math.inf:
        raise ModelError(f"a price of {price_per_hour} an hour: a positive number is expected")
    device = None if gpu is None else accelerator(gpu)
    memory_bytes = None if device is None else device.memory_bytes
    rate = None if device is None else device.bandwidth_bytes_per_s
    return Choices(
        context_tokens=None if context is None else parse_tokens(context),
        engine=engine,
        options=options,
        memory_bytes=memory_bytes if memory is None else parse_memory(memory, "memory"),
        reserve_bytes=parse_memory(reserve, "a reserve"),
        num_conversations=conversations,
        bandwidth_bytes_per_s=rate if bandwidth is None else parse_bandwidth(bandwidth),
        price_per_hour=price_per_hour,
    )


@dataclass(frozen=True)
class Sized:
    """A model as asked for; ``published`` is it without the changes of a what-if."""

    sizing: Sizing
    config: Config
    published: Sizing | None = None


def size_model(
    model: str,
    choices: Choices,
    *,
    weights: str | None = None,
    kv_dtype: str | None = None,
    k_dtype: str | None = None,
    v_dtype: str | None = None,
    what_if: Sequence[str] = (),
    assume: str | None = None,
    mtp: int = 0,
    draft: str | None = None,
) -> Sized:
    """Find a model, read its configuration and size it.

    ``k_dtype`` and ``v_dtype`` outrank ``kv_dtype``; what is not given is the model's own. ``mtp``
    layers and a ``draft`` model add their cache. Raises ModelError, in one line, for whatever is
    wrong with the model or the choices.
    """
    source = resolve(model, weights=False)
    changes = parse_changes(what_if)
    shape = read_shape(source.config, assume)
    draft_shape = draft and read_shape(resolve(draft, weights=False).config, assume)

    def sized(shape: ModelShape, config: Config) -> Sizing:
        shape = with_mtp(shape, mtp)
        if draft_shape:
            shape = with_draft(shape, draft_shape)
        dtypes = None
        if kv_dtype or k_dtype or v_dtype:
            usual = kv_dtype or shape.kv_dtype
            dtypes = kv_dtypes(k_dtype or usual, v_dtype or usual)
        total = (
            _weight_bytes(source, config, assume)
            if weights is None
            else parse_memory(weights, "weights")
        )
        options = replace(choices.options, convolution_tokens=convolution_tokens(config))
        return Sizing(model, shape, replace(choices, dtypes=dtypes, options=options), total)

    published = sized(shape, source.config)
    if not changes:
        return Sized(published, source.config)
    config = changed_config(source.config, changes)
    changed = read_shape(config, assume)
    if any(takes_windows_away(key, value) for key, value in changes.items()):
        changed = without_windows(changed)
    elif (window_tokens := windows_asked_for(changes)) is not None:
        changed = with_windows(changed, window_tokens)
    check_changed(source.config, changes, shape, changed)
    return Sized(sized(changed, config), config, published)


def _weight_bytes(source: ModelSource, config: Config, assume: str | None) -> int | None:
    """The size of the weight files where they are here, else what the configuration comes to.

    None where that cannot be told: how many fit then cannot either, but all else can.
    """
    try:
        files = _weight_files(source)
        if not files and source.is_gguf:  # its quantisation is in the part that is missing
            return None
        return sum(file.stat().st_size for file in files) or weight_bytes(config, assume)
    except OSError as error:
        raise ModelError(f"{source.path}: cannot be read: {error.strerror}") from None
    except ModelError:
        return None


def _weight_files(source: ModelSource) -> tuple[Path, ...]:
    """The files that hold the weights; none where they are not all here."""
    if not source.is_gguf and not source.path.is_dir():
        return ()
    try:
        return source.weight_files
    except ModelError:
        return ()
