"""What the ingress knows of the model: how its prompts become tokens."""

from functools import lru_cache

from kvikk.errors import ModelError
from kvikk.files.sources import resolve
from kvikk.router.placement.options import PlacementOptions
from kvikk.router.placement.prompts import TextSide
from kvikk.text.chat import load_chat_template
from kvikk.text.tokenizer import load_tokenizer


def placement_options(policy: str, model: str) -> PlacementOptions:
    """How the ingress chooses for replicas of ``model``."""
    return PlacementOptions(policy=policy, text_side=text_side(model))


@lru_cache(maxsize=4)
def text_side(model: str) -> TextSide | None:
    """The tokeniser and template of ``model``; None where this machine does not have them.

    Without them prompts are compared by their content, which serves as well for finding who
    answered the like before.
    """
    try:
        source = resolve(model, weights=False)
        tokenizer = load_tokenizer(source)
        return TextSide(tokenizer, load_chat_template(source, tokenizer))
    except ModelError:
        return None
