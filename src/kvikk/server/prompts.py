"""From a conversation or a text to the tokens of one prompt."""

from collections.abc import Sequence

from kvikk.engine.loading import LoadedEngine
from kvikk.server.question import Prompt
from kvikk.server.threads import run_beside_loop_if
from kvikk.text.chat import require_chat_template
from kvikk.text.places import place_parts
from kvikk.text.tool_styles import answer_style, forced_calls, shown_token_ids
from kvikk.wire.conversation import Message, named_texts
from kvikk.wire.tools import ToolUse

# Longer texts are tokenised beside the event loop, which would otherwise stand still for them.
_LONG_TEXT_CHARACTERS = 8192


class PromptMaker:
    """Makes prompts for one model, which errors call ``model_id``."""

    def __init__(self, loaded: LoadedEngine, model_id: str) -> None:
        self._tokenizer = loaded.tokenizer
        self._chat_template = loaded.chat_template
        self._model_id = model_id

    @property
    def template_source(self) -> str | None:
        """The chat template, in Jinja; None where the model has none."""
        return None if self._chat_template is None else self._chat_template.source

    async def of_chat(
        self,
        messages: Sequence[Message],
        use: ToolUse | None = None,
        *,
        continues: bool = False,
        parameter: str = "messages",
    ) -> Prompt:
        """The prompt that the model's template makes of a conversation and tools.

        It ends where the answer begins; if it ``continues``, the last message is the beginning of
        the answer. Raises RequestError if there is no template, or if it refuses.
        """
        template = require_chat_template(self._chat_template, self._model_id)
        plain = [message.for_template() for message in messages]
        use = use or ToolUse()
        plain_tools = [tool.to_json() for tool in use.offered]
        # What the template is given, names and calls and all, and something for each message.
        length = sum(16 + sum(map(_characters, message.values())) for message in plain)

        def tokenize() -> Prompt:
            render = template.render_unfinished if continues else template.render
            rendered = render(plain, tools=plain_tools or None)
            parts = place_parts(rendered, named_texts(messages))
            style = answer_style(template.source, use, rendered)
            return Prompt(
                self._tokenizer.encode(rendered, add_bos=False),
                parameter,
                parts,
                style,
                shown_token_ids(style, self._tokenizer),
                forced_calls(style, use, self._tokenizer),
            )

        return await run_beside_loop_if(
            length > _LONG_TEXT_CHARACTERS or bool(plain_tools), tokenize
        )

    async def of_text(self, text: str, *, plain: bool = False) -> Prompt:
        """The prompt that a plain text is; ``plain``: with nothing in front of it."""

        def tokenize() -> Prompt:
            add_bos = False if plain else None
            return Prompt(self._tokenizer.encode(text, add_bos=add_bos), "prompt")

        return await run_beside_loop_if(len(text) > _LONG_TEXT_CHARACTERS, tokenize)


def _characters(value: object) -> int:
    """About how long a value is in a rendered prompt."""
    return len(value) if isinstance(value, str) else len(str(value))
