"""``POST /tokenize`` and ``/detokenize``, in vLLM's form."""

from dataclasses import dataclass, field
from typing import Any

from kvikk.wire.chat_completions import read_message
from kvikk.wire.conversation import Message
from kvikk.wire.reading import JsonValue
from kvikk.wire.tools import ToolUse


@dataclass(frozen=True)
class TokenizeRequest:
    """A text, or a conversation and tools, as the tokens of the prompt that it makes.

    ``add_special_tokens`` puts in front of a text what the model wants there.
    """

    model: str | None
    text: str | None
    messages: tuple[Message, ...] = ()
    tools: ToolUse = field(default_factory=ToolUse)
    add_special_tokens: bool = True
    with_strings: bool = False

    @classmethod
    def from_json(cls, body: JsonValue) -> "TokenizeRequest":
        """Read a body. Raises RequestError, naming the path, for what cannot be understood."""
        model, prompt, messages = (body.get(name) for name in ("model", "prompt", "messages"))
        if prompt.is_null == messages.is_null:
            prompt.fail("one of prompt and messages is needed, and not both")
        return cls(
            None if model.is_null else model.string(),
            None if prompt.is_null else prompt.string(),
            () if messages.is_null else tuple(map(read_message, messages.items())),
            ToolUse.from_json(body),
            body.get("add_special_tokens").boolean(True),
            body.get("return_token_strs").boolean(False),
        )


@dataclass(frozen=True)
class DetokenizeRequest:
    """Tokens, as the text that they are; control tokens show their names."""

    model: str | None
    token_ids: tuple[int, ...]

    @classmethod
    def from_json(cls, body: JsonValue) -> "DetokenizeRequest":
        """Read a body. Raises RequestError, naming the path, for what cannot be understood."""
        model = body.get("model")
        return cls(
            None if model.is_null else model.string(),
            tuple(item.integer(0, 2**31 - 1) for item in body.get("tokens").items()),
        )


def tokenized(
    token_ids: list[int], max_model_len: int, strings: list[str] | None
) -> dict[str, Any]:
    """The answer to ``/tokenize``."""
    return {
        "count": len(token_ids),
        "max_model_len": max_model_len,
        "tokens": token_ids,
        "token_strs": strings,
    }
