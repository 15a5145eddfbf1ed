"""Chat templates: a conversation rendered to the one text a model was trained on.

Templates come with models, so they are programs by strangers: they run in a sandbox, on copies of
plain data, with a bound on how long they take and how much they write.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvikk.errors import ModelError, RequestError
from kvikk.files.sources import ModelSource
from kvikk.text.folder_tokenizer import read_json
from kvikk.text.tokenizer import Tokenizer
from kvikk.text.tool_prompts import tell_tools

MAX_TEMPLATE_CHARACTERS = 1 << 20
# A prompt may be this much longer than its messages are as JSON: roles, marks, default texts.
MAX_ADDED_CHARACTERS = 1 << 20
MAX_GROWTH = 16

Message = Mapping[str, Any]


class ChatTemplate:
    """One model's template, compiled. Safe to use from several threads."""

    def __init__(self, source: str, tokenizer: Tokenizer, origin: str) -> None:
        """Compile ``source``, which errors call ``origin``; a ModelError if it is not Jinja."""
        from jinja2.exceptions import TemplateError
        from jinja2.meta import find_undeclared_variables

        from kvikk.text.sandbox import TemplateEnvironment

        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise ModelError(f"{origin}: a chat template of {len(source)} characters; too long")
        self._environment = TemplateEnvironment()
        try:
            self._template = self._environment.from_string(source)
            named = find_undeclared_variables(self._environment.parse(source))
        except (TemplateError, RecursionError, MemoryError, OverflowError) as error:
            raise ModelError(f"{origin}: not a usable chat template: {_one_line(error)}") from None
        self.source = source
        self.knows_tools = "tools" in named
        self._variables = {
            "documents": None,
            "bos_token": _spelling(tokenizer, tokenizer.bos_token_id),
            "eos_token": _spelling(tokenizer, tokenizer.eos_token_id),
        }

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt for ``messages``, each with ``role`` and ``content``, and ``tools``.

        Where a template does not know of tools, they are told in the messages.

        With ``add_generation_prompt`` it ends where the assistant's answer begins. Raises
        RequestError if the template refuses the messages, and if it does anything it may not.
        """
        from jinja2.exceptions import TemplateError

        # A template sees a copy: it can neither keep nor change what belongs to others. A field
        # that is null is left out, as in Hugging Face's own call: many templates print "None".
        shown = list(messages) if self.knows_tools else tell_tools(messages, tools)
        given = json.dumps([shown, tools], ensure_ascii=False)
        copied_messages, copied_tools = json.loads(given)
        variables = self._variables | {
            "messages": [
                {key: value for key, value in message.items() if value is not None}
                for message in copied_messages
            ],
            "tools": copied_tools,
            "add_generation_prompt": add_generation_prompt,
        }
        parts: list[str] = []
        remaining = MAX_GROWTH * len(given) + MAX_ADDED_CHARACTERS
        self._environment.start_clock()
        try:
            for part in self._template.generate(**variables):
                remaining -= len(part)
                if remaining < 0:
                    raise RequestError("the chat template writes without end", "messages")
                parts.append(part)
        except RequestError:
            raise
        except TemplateError as error:
            reason = _one_line(error)
            raise RequestError(f"the chat template refuses: {reason}", "messages") from None
        except Exception as error:  # a template can fail in any way that Python can
            reason = f"{type(error).__name__}: {_one_line(error)}"
            raise RequestError(f"the chat template fails: {reason}", "messages") from None
        return "".join(parts)

    def render_unfinished(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        """The same, where the last message is the beginning of the answer: it ends with its text.

        Raises RequestError also if the template does not write that text down as it is.
        """
        rendered = self.render(messages, tools=tools, add_generation_prompt=False)
        text = str(messages[-1]["content"]).strip()  # as many templates do
        found = rendered.rfind(text)
        if found < 0:
            raise RequestError(
                "the chat template cannot go on from a last message of the assistant's", "messages"
            )
        return rendered[: found + len(text)]


def load_chat_template(
    source: ModelSource, tokenizer: Tokenizer, file: Path | None = None
) -> ChatTemplate | None:
    """The chat template that came with a model, or the one in ``file``; None where there is none.

    Raises ModelError if ``file`` cannot be read or a template is not usable.
    """
    if file is not None:
        return ChatTemplate(_read_text(file), tokenizer, str(file))
    if source.is_gguf:
        text = source.gguf.metadata.get("tokenizer.chat_template")
    else:
        text = _template_of_folder(source.path)
    return ChatTemplate(text, tokenizer, str(source.path)) if isinstance(text, str) else None


def require_chat_template(template: ChatTemplate | None, model: str) -> ChatTemplate:
    """``template``; raises RequestError, with what to do, where a model has none."""
    if template is None:
        raise RequestError(
            f"model {model!r} has no chat template; serve it with --chat-template FILE, "
            "or send a plain prompt to /v1/completions",
            "messages",
        )
    return template


def _template_of_folder(folder: Path) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _read_text(path)
    value = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(value, list):  # several, by name
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ModelError(f"{path}: not UTF-8 text; expected a chat template in Jinja") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


def _spelling(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.decode([token_id], special=True)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
