"""``kvikk generate``: one streamed answer, and what the cache had to do with it."""

import json
import sys
from typing import Annotated

import typer

from kvikk.cli import options, report
from kvikk.errors import RequestError


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"standard input is not UTF-8 text (byte {error.start}); expected a prompt"
        ) from None


def generate(
    model_or_prompt: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL] PROMPT",
            help="The prompt, - to read it from standard input; in front of it, perhaps a model.",
        ),
    ],
    prompt: Annotated[str | None, typer.Argument(hidden=True)] = None,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without chat template.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="A system message before the prompt.")] = None,
    no_cache: Annotated[
        bool,
        typer.Option("--no-cache", help="Compute everything again for each token, to compare."),
    ] = False,
    backend: options.Backend = "auto",
    threads: options.Threads = None,
    kv_memory: options.KvMemory = None,
    kv_dtype: options.KvDtype = None,
    max_context: options.MaxContext = None,
    no_speculation: options.NoSpeculation = False,
    chat_template: options.ChatTemplate = None,
    as_json: options.Json = False,
) -> None:
    """Answer one prompt, and say what was reused, what was computed, and how fast."""
    from kvikk.engine.llm import LLM
    from kvikk.engine.progress_bar import loading_line
    from kvikk.server.ledgers import request_ledger

    model = options.DEFAULT_MODEL if prompt is None else model_or_prompt
    text = model_or_prompt if prompt is None else prompt
    if text == "-":
        text = _standard_input()
    generation = options.generation_options(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
    )
    with loading_line(model) as progress:
        llm = LLM(
            model,
            progress=progress,
            **options.engine_options(
                backend=backend,
                threads=threads,
                kv_memory=kv_memory,
                kv_dtype=kv_dtype,
                max_context=max_context,
                speculation=not no_speculation,
                chat_template=chat_template,
                use_cache=not no_cache,
            ),
        )
    if raw or llm.loaded.chat_template is None:
        token_ids = tuple(llm.loaded.tokenizer.encode(text))
    else:
        messages = [] if system is None else [{"role": "system", "content": system}]
        token_ids = llm.chat_prompt([*messages, {"role": "user", "content": text}])
    parts = []
    for output in llm.stream(token_ids, **generation):
        parts.append(output.text)
        if not as_json:
            print(output.text, end="", flush=True)
    computed_tokens = llm.loaded.engine.stats().computed_tokens
    timings, usage = output.timings, output.usage
    tokens_per_s = timings.tokens_per_s(usage.completion_tokens)
    books = llm.loaded.engine.books
    assert books is not None, "an engine from a command line keeps books"
    ledger = request_ledger(books, books.accounts.latest(1)[0], tenant=None)
    if as_json:
        print(
            json.dumps(
                {
                    "model": model,
                    "text": "".join(parts),
                    "finish_reason": output.finish_reason,
                    "prompt_tokens": usage.prompt_tokens,
                    "cached_tokens": usage.cached_tokens,
                    "completion_tokens": usage.completion_tokens,
                    "computed_tokens": computed_tokens,
                    "ledger": ledger.by_cause,
                    "spans": [span.to_json() for span in ledger.spans],
                    "prefill_s": timings.prefill_s,
                    "tokens_per_s": tokens_per_s,
                }
            )
        )
        return
    print()
    report.note(
        f"{report.reuse(usage.prompt_tokens, usage.cached_tokens)} · "
        f"prefill {timings.prefill_s or 0:.2f} s · "
        f"{report.speed(usage.completion_tokens, tokens_per_s)} · "
        f"{computed_tokens:,} positions computed"
    )
    report.note(f"ledger: {ledger.header}")
