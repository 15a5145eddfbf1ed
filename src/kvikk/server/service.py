"""What all routes share: the engine's worker, the model's text side, keys and figures."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from kvikk.cache.records import ResetResult
from kvikk.engine.books import Books
from kvikk.engine.engine import Engine
from kvikk.engine.loading import LoadedEngine
from kvikk.engine.requests import Origin, Output, Request
from kvikk.engine.worker import EngineWorker
from kvikk.errors import BusyError, ModelError, RequestError
from kvikk.server.access_log import NAME as ACCESS_LOG
from kvikk.server.billing.decisions import Decider
from kvikk.server.billing.prompts import ProviderPrompts
from kvikk.server.billing.report import Machine, Wanted, bill_json
from kvikk.server.billing.tabs import Tab, Tabs
from kvikk.server.errors import ApiError
from kvikk.server.generation import to_generation
from kvikk.server.kept import KeptRequests
from kvikk.server.keys import Caller
from kvikk.server.ledger_log import LedgerLog
from kvikk.server.ledgers import request_ledger
from kvikk.server.log_lines import LineLog
from kvikk.server.mailbox import Mailbox, Postman
from kvikk.server.metrics import Metrics
from kvikk.server.models import ServedModels
from kvikk.server.options import ServerOptions
from kvikk.server.prompts import PromptMaker
from kvikk.server.question import ID_PREFIXES, Question
from kvikk.server.tenants import TenantPlaces
from kvikk.server.tracing.export import SpanExport
from kvikk.text.grammars import Grammar, GrammarCompiler
from kvikk.wire.models import ModelCard

Result = TypeVar("Result")


class Service:
    """One served model."""

    def __init__(self, loaded: LoadedEngine, options: ServerOptions) -> None:
        self.options = options
        assert loaded.engine.books is not None, "a server keeps books"
        self._books = loaded.engine.books
        self.loaded = loaded
        self.worker = EngineWorker(loaded.engine)
        self.max_context_tokens = loaded.engine.max_context_tokens
        self.model = ModelCard(_model_id(loaded.model), int(time.time()), self.max_context_tokens)
        self.models = ServedModels(self.model, loaded.engine.adapters)
        if self.model.id in loaded.engine.adapters.by_name:
            raise ModelError(f"an adapter cannot be called {self.model.id!r}: the model is")
        self.span_export: SpanExport | None = None
        if options.otlp_traces_endpoint is not None:
            self.span_export = SpanExport(options.otlp_traces_endpoint)
        self.metrics = Metrics(
            self.model.id,
            self.worker.stats,
            self._books.accounts.since_start,
            None if self.span_export is None else self.span_export.counts,
        )
        self._ledger_log: LedgerLog | None = None
        if options.ledger_log is not None:
            text = loaded.tokenizer if options.ledger_text else None
            self._ledger_log = LedgerLog(options.ledger_log, options.engine.block_size, text)
            self._ledger_log.follow(self._books)
        self.access_log: LineLog | None = None
        if options.access_log is not None:
            self.access_log = LineLog(options.access_log, ACCESS_LOG)
        self.kept = KeptRequests(len(options.api_keys) + (options.operator_key is not None))
        self._places = TenantPlaces(options.most_requests_a_tenant)
        self.tokenizer = loaded.tokenizer
        self._grammars = GrammarCompiler(loaded.tokenizer)
        self.prompts = PromptMaker(loaded, self.model.id)
        shares = options.engine.prefix_caching and options.engine.use_cache
        block_size = options.engine.block_size if shares else None
        self.tabs = Tabs(Decider(options.load_rules(), block_size), options.load_clock())
        self._started_s = time.monotonic()
        self._provider_prompts = ProviderPrompts(loaded.tokenizer)

    def stop(self) -> None:
        """End what runs and close what is open; returns when all is done."""
        self.worker.stop()
        for log in (self._ledger_log, self.access_log, self.span_export):
            if log is not None:
                log.close()

    def reopen_logs(self) -> None:
        """Open the logs' files by their names again: they were moved away."""
        for log in (self._ledger_log, self.access_log):
            if log is not None:
                log.reopen()

    @cached_property
    def _postman(self) -> Postman:
        return Postman(asyncio.get_running_loop())

    def check_model(self, model: str) -> None:
        """Raise UnknownModelError unless ``model`` is the served one, or an adapter of it."""
        self.models.find(model)

    def open_tab(self, question: Question, caller: Caller) -> Tab:
        """The bill of a request that arrives now, from which its caller is told what it used.

        Raises RequestError for what the rules refuse that this server goes by.
        """
        has_rules = self.tabs.decider.rules is not None
        return self.tabs.open(self._provider_prompts.of(question, caller) if has_rules else None)

    async def compile(self, question: Question) -> Grammar | None:
        """The grammar that an answer must keep to; None where it may be anything.

        Raises RequestError for one that makes no sense.
        """
        asked, forced = question.fields.grammar, question.prompt.forced
        if asked is not None and forced is not None:
            raise RequestError(
                f"{forced.parameter}: an answer cannot be a call of a tool and keep to "
                f"{asked.parameter} as well",
                forced.parameter,
            )
        spec = forced or asked
        return None if spec is None else await asyncio.to_thread(self._grammars.compile, spec)

    def submit(
        self,
        question: Question,
        caller: Caller,
        tab: Tab,
        *,
        route: str,
        grammar: Grammar | None = None,
    ) -> tuple[str, Mailbox]:
        """Hand a question to the engine: the request's id, and where its outputs arrive.

        ``grammar`` is the question's, compiled. Raises ApiError or RequestError if it cannot be
        served, now or ever.
        """
        prompt, fields = question.prompt, question.fields
        token_ids = prompt.token_ids
        if len(token_ids) >= self.max_context_tokens:
            raise ApiError(
                400,
                f"the prompt has {len(token_ids)} tokens; with one for the answer this server's "
                f"limit is {self.max_context_tokens}",
                parameter=prompt.parameter,
                code="context_length_exceeded",
            )
        request = Request(
            f"{ID_PREFIXES[question.api]}{secrets.token_hex(12)}",
            token_ids,
            to_generation(question, grammar),
            request_salt(caller.salt, fields.cache_salt),
            Origin(caller.tenant, caller.key, route, fields.model),
            prompt.parts,
            fields.priority,
            str(question.body.get("prompt_cache_key") or ""),
            self.models.adapter_of(fields.model),
        )
        return request.id, self.hand_in(request, caller, tab)

    def hand_in(self, request: Request, caller: Caller, tab: Tab) -> Mailbox:
        """Give a request to the engine; where its outputs arrive.

        Raises ApiError or RequestError if it cannot be served, now or ever.
        """
        mailbox = Mailbox()
        postman, observe = self._postman, self.metrics.observer()
        broken = False

        def listen(output: Output) -> None:  # in the engine's thread, whose the books are
            nonlocal broken
            if not broken:
                broken = True  # unless all of this goes well: then only the end is passed on
                account = None if mailbox.ledger else self._books.accounts.find(request.id)
                if account is not None:
                    mailbox.ledger = request_ledger(self._books, account, caller.reader)
                    tab.settle(account, output)
                tab.take(output)
                observe(output)
                broken = False
            if output.ends_request:
                self._places.give_back(caller.tenant)
            postman.post(mailbox, output)

        try:
            self._places.take(caller.tenant)
            try:
                self.worker.submit(request, listen)
            except BaseException:
                self._places.give_back(caller.tenant)
                raise
        except BusyError as error:
            raise self._busy(error) from None
        return mailbox

    async def call(self, function: Callable[[Engine], Result]) -> Result:
        """What a function finds or does between two steps. ApiError if the engine has stopped."""
        return await self._call(function)

    async def reset_cache(self) -> ResetResult:
        """Forget all that was computed. Raises ApiError if the engine has stopped."""
        return await self._call(Engine.reset_cache)

    async def read_books(self, read: Callable[[Books], Result]) -> Result:
        """What ``read`` finds in the books. Raises ApiError if the engine has stopped."""
        return await self._call(lambda engine: read(self._books))

    async def read_bill(self, wanted: Wanted) -> dict[str, Any]:
        """The bill of what is wanted. Raises ApiError if the engine has stopped."""
        machine = Machine(self.options.price_per_hour, time.monotonic() - self._started_s)
        tabs = self.tabs
        return await self._call(
            lambda engine: bill_json(tabs.book, tabs.decider.rules, machine, wanted)
        )

    async def _call(self, function: Callable[[Engine], Result]) -> Result:
        try:
            return await asyncio.wrap_future(self.worker.call(function))
        except BusyError as error:
            raise self._busy(error) from None

    def _busy(self, error: BusyError) -> ApiError:
        """Too many requests for now (429), or no more of them at all (503)."""
        status = 429 if self.worker.accepting else 503
        headers = {"Retry-After": str(error.retry_after_s)}
        return ApiError(status, str(error), headers=headers)


def _model_id(model: str) -> str:
    """What clients call the model: an alias or hub id as it is, a file or folder by its name."""
    path = Path(model).expanduser()
    if not path.exists():
        return model
    return path.resolve().stem if path.is_file() else path.resolve().name


def request_salt(tenant_salt: bytes, cache_salt: str) -> bytes:
    """What parts a request's blocks from those of others, by its tenant's salt and its own."""
    if not tenant_salt and not cache_salt:
        return b""
    # Lone surrogates, which JSON can hold, are kept apart: salts that differ never meet.
    salt = cache_salt.encode("utf-8", "surrogatepass")
    return hashlib.sha256(tenant_salt + b"\0" + salt).digest()
