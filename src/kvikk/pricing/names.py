"""The names of rule sets: ``provider:model``, also by way of a cloud or a gateway."""

import re
from typing import NamedTuple

from kvikk.errors import ModelError
from kvikk.pricing.rows import VENDORS_OWN


class Name(NamedTuple):
    """Whose model it is, by which channel it is reached, and what it is called there."""

    provider: str
    channel: str
    model: str


_VENDORS = {"google": "gemini", "x-ai": "xai"}  # what gateways and clouds call some of them


def parse_name(name: str) -> Name:
    """Read ``provider:model``. Raises ModelError for anything else."""
    provider, colon, model = name.partition(":")
    provider, model = provider.strip().lower(), model.strip()
    if not colon or not provider or not model:
        raise ModelError(
            f"{name[:100]!r} is no rule set; expected PROVIDER:MODEL, such as openai:gpt-5.6"
        )
    match provider:
        case "azure":
            return Name("openai", provider, model)
        case "bedrock":
            # us.anthropic.claude-sonnet-4-5-20250929-v1:0
            bare = re.sub(r"-v\d+(:\d+)?$", "", model)
            vendor, dot, bare = bare.rpartition(".")
            return Name(vendor.rpartition(".")[2] if dot else "anthropic", provider, bare)
        case "vertex":
            bare = model.replace("@", "-")  # claude-sonnet-4-5@20250929
            return Name("anthropic" if bare.startswith("claude") else "gemini", provider, bare)
        case "openrouter":
            vendor, slash, bare = model.partition("/")
            if not slash:
                raise ModelError(
                    f"{name[:100]!r}: expected the vendor too, such as openrouter:openai/gpt-5.6"
                )
            # Anthropic's ids have no dots: claude-sonnet-4.5 is claude-sonnet-4-5.
            bare = bare.replace(".", "-") if vendor == "anthropic" else bare
            return Name(_VENDORS.get(vendor, vendor), provider, bare)
        case _:
            return Name(_VENDORS.get(provider, provider), VENDORS_OWN, model)
