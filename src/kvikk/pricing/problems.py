"""What a provider refuses about a prompt's markers, with a 400 and before it computes anything."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvikk.pricing.caching import Breakpoints, Caching
from kvikk.pricing.prompt import ProviderPrompt


@dataclass(frozen=True, slots=True)
class Problem:
    """``path`` is the marker at fault, ``message`` one line without it."""

    kind: Literal["lifetime", "order", "number"]
    path: str
    message: str


def problems(caching: Caching, prompt: ProviderPrompt) -> tuple[Problem, ...]:
    """All that is refused about ``prompt``, in the order of its pieces."""
    if not isinstance(caching.scheme, Breakpoints):
        return ()
    return (
        *_unknown_lifetimes(caching, prompt),
        *_order(caching, prompt),
        *_number(caching, prompt),
    )


def _markers(prompt: ProviderPrompt) -> list[tuple[str, str]]:
    """Path and ``ttl`` of each marker in rendering order."""
    return [
        (position.marker.path or position.path, position.marker.ttl)
        for position in prompt.positions
        if position.marker is not None
    ]


def _unknown_lifetimes(caching: Caching, prompt: ProviderPrompt) -> Iterator[Problem]:
    for path, ttl in _markers(prompt):
        if ttl and ttl not in caching.lifetimes:
            known = " or ".join(f'"{name}"' for name in caching.lifetimes)
            yield Problem("lifetime", path, f"a ttl of {ttl[:50]!r}; expected {known}")


def _order(caching: Caching, prompt: ProviderPrompt) -> Iterator[Problem]:
    shortest, name = float("inf"), ""
    for path, ttl in _markers(prompt):
        asked = caching.lifetime_name(ttl)
        idle_s = caching.lifetimes[asked].idle_s
        if idle_s > shortest:
            yield Problem(
                "order",
                path,
                f"a marker with ttl {asked!r} must not come after one with ttl {name!r}; the order "
                "is tools, system, messages",
            )
        else:
            shortest, name = idle_s, asked


def _number(caching: Caching, prompt: ProviderPrompt) -> Iterator[Problem]:
    assert isinstance(caching.scheme, Breakpoints)
    most = caching.scheme.most_markers
    paths = [path for path, _ in _markers(prompt)]
    for path in paths[most:]:
        yield Problem(
            "number", path, f"at most {most} blocks with cache_control, found {len(paths)}"
        )
