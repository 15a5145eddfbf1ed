"""``kvikk chat``: a conversation in the terminal, and what each turn reused."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvikk.cli import options, report
from kvikk.errors import KvikkError

if TYPE_CHECKING:
    from kvikk.wire.client import ChatPiece

Messages = list[dict[str, str]]
Answer = Callable[[Messages], Iterator["ChatPiece"]]


def chat(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL or URL", help="A model, or a server's URL with its /v1."),
    ] = options.DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    max_tokens: options.MaxTokens = 512,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = None,
    api_key: options.ServerKey = None,
    served_model: Annotated[
        str | None,
        typer.Option("--model", help="Which of the server's models; default: the first."),
    ] = None,
    backend: options.Backend = "auto",
    threads: options.Threads = None,
    kv_memory: options.KvMemory = None,
    kv_dtype: options.KvDtype = None,
    max_context: options.MaxContext = None,
    no_speculation: options.NoSpeculation = False,
    chat_template: options.ChatTemplate = None,
) -> None:
    """Talk with a model, here or on a server. /reset begins anew, /quit or Ctrl-D ends."""
    parameters = options.generation_options(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed
    )
    if model.startswith(("http://", "https://")):
        answer = _remote(model, api_key, served_model, parameters)
    else:
        answer = _local(
            model,
            options.engine_options(
                backend=backend,
                threads=threads,
                kv_memory=kv_memory,
                kv_dtype=kv_dtype,
                max_context=max_context,
                speculation=not no_speculation,
                chat_template=chat_template,
            ),
            parameters,
        )
    _converse(answer, [] if system is None else [{"role": "system", "content": system}])


def _remote(
    url: str, api_key: str | None, served_model: str | None, parameters: dict[str, Any]
) -> Answer:
    """An answering function over somebody's server."""
    from kvikk.wire.client import ChatClient

    client = ChatClient(url, api_key, served_model)
    return lambda messages: client.stream(messages, **parameters)


def _local(model: str, engine: dict[str, Any], parameters: dict[str, Any]) -> Answer:
    """An answering function over an engine of our own."""
    from kvikk.engine.llm import LLM
    from kvikk.engine.progress_bar import loading_line
    from kvikk.wire.client import ChatPiece
    from kvikk.wire.usage import Usage

    with loading_line(model) as progress:
        llm = LLM(model, progress=progress, **engine)

    def answer(messages: Messages) -> Iterator[ChatPiece]:
        for output in llm.stream(llm.chat_prompt(messages), **parameters):
            usage = output.usage
            yield ChatPiece(
                output.text,
                None
                if output.finish_reason is None
                else Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens),
            )

    return answer


def _converse(answer: Answer, opening: Messages) -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() its line editing and history
    messages = list(opening)
    report.note("/reset begins anew, /quit or Ctrl-D ends")
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return
        if line == "/quit":
            return
        if line == "/reset":
            messages = list(opening)
            continue
        if line:
            _turn(answer, messages, line)


def _turn(answer: Answer, messages: Messages, line: str) -> None:
    """One question and its answer; a turn that fails or is interrupted leaves no trace."""
    question = {"role": "user", "content": line}
    parts: list[str] = []
    usage = None
    started_s = time.monotonic()
    first_token_s = None
    try:
        for piece in answer([*messages, question]):
            if piece.text and first_token_s is None:
                first_token_s = time.monotonic() - started_s
            parts.append(piece.text)
            print(piece.text, end="", flush=True)
            usage = piece.usage or usage
    except KeyboardInterrupt:
        print()
        return
    except KvikkError as error:
        if parts:
            print()
        report.problem(str(error))
        return
    print()
    messages += [question, {"role": "assistant", "content": "".join(parts)}]
    if usage is not None:
        elapsed_s = time.monotonic() - started_s - (first_token_s or 0)
        rate = (usage.completion_tokens - 1) / elapsed_s if elapsed_s > 0 else None
        report.note(
            f"{report.reuse(usage.prompt_tokens, usage.cached_tokens)} · "
            f"first token after {first_token_s or 0:.2f} s · "
            f"{report.speed(usage.completion_tokens, rate or None)}"
        )
