"""The engine's books: a ledger a request, the totals, and what other amounts of memory would hit.

The engine says who is admitted, who ends and that the cache was emptied; the cache says by itself
what happens to its blocks. Nothing here changes what either does.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial

from kvikk.backends.base import Plan
from kvikk.cache.events import BlockStored, Event
from kvikk.cache.keys import KeyChain
from kvikk.cache.ledger.accountant import DEFAULT_MEMORY_BYTES, Accountant
from kvikk.cache.ledger.records import NO_ORIGINS, Cause, Ledger, Origins, Span
from kvikk.cache.ledger.roots import Root
from kvikk.cache.ledger.what_if import WhatIf, WhatIfs
from kvikk.cache.records import GroupSpec
from kvikk.engine.accounts import Account, Accounts
from kvikk.engine.adapters import LoadedAdapter
from kvikk.engine.requests import Request
from kvikk.engine.story import PoolGroup, Storyteller
from kvikk.text.tokenizer import Tokenizer

# Of the pool's own size: what an operator would ask about.
MEMORY_SHARES = (Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))


# Is told of each account as it is opened, with the prompt's tokens and the keys of its full blocks.
AccountLog = Callable[[Account, Sequence[int], Sequence[bytes]], None]
# Is told of each change of the prefix index, of stored blocks with their tokens, their salt
# and the name of the adapter they were computed with.
EventListener = Callable[[Event, Sequence[int], bytes, str], None]


class Books:
    """Accounts for one engine's requests; owned by the engine's thread.

    ``log`` and ``on_event``, where they are, are called in that thread and must return at once.
    ``keeps_apart`` says whether tenants' shares or pins hold blocks now.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        model_digest: bytes,
        numerics: str,
        tokenizer: Tokenizer | None,
        block_bytes: Sequence[int],
        step_tokens: int,
        eviction: str,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        keeps_apart: Callable[[], bool] = lambda: False,
    ) -> None:
        self.accounts = Accounts()
        self.log: AccountLog | None = None
        self.on_event: EventListener | None = None
        self._accountant = Accountant(
            plan.block_size,
            [group.window_tokens for group in plan.groups],
            memory_bytes=memory_bytes,
        )
        self._plan = plan
        self._keeps_apart = keeps_apart
        self._model_digest = model_digest
        self._numerics = numerics
        self._tokenizer = tokenizer
        self._adapters: dict[int, str] = {}  # names, of the open sequences that have one
        self._groups = tuple(
            PoolGroup(group.window_tokens, num_blocks, num_bytes)
            for group, num_blocks, num_bytes in zip(
                plan.groups, plan.num_blocks, block_bytes, strict=True
            )
        )
        self._what_ifs = WhatIfs(
            [
                GroupSpec(num_blocks, group.window_tokens)
                for group, num_blocks in zip(plan.groups, plan.num_blocks, strict=True)
            ],
            plan.block_size,
            MEMORY_SHARES,
            eviction=eviction,
            step_tokens=step_tokens,
        )

    def hear(self, event: Event) -> None:
        """Follow the cache."""
        self._accountant.hear(event)
        if self.on_event is None:
            return
        if isinstance(event, BlockStored):
            tokens = self._accountant.tokens_of(event.sequence_id)
            assert tokens is not None, "who stores a block is open"
            stop = event.start_token + len(event.keys) * event.block_size
            salt = self._accountant.root_of(event.sequence_id).salt
            adapter = self._adapters.get(event.sequence_id, "")
            self.on_event(event, tokens[event.start_token : stop], salt, adapter)
        else:
            self.on_event(event, (), b"", "")

    def root(self, salt: bytes, adapter: LoadedAdapter | None = None) -> Root:
        """What the keys of a tenant's prompts begin with."""
        return Root.of(
            block_size=self._plan.block_size,
            model=self._model_digest,
            kv_dtype=self._plan.kv_dtype,
            numerics=self._numerics,
            adapter=b"" if adapter is None else adapter.content_digest,
            salt=salt,
        )

    def admit(
        self,
        request: Request,
        sequence: int,
        tokens: Sequence[int],
        keys: Sequence[bytes] | None,
        *,
        hit_tokens: int,
        waited_for: int | None,
        computing: Callable[[bytes], int | None],
        origins: Origins = NO_ORIGINS,
        adapter: LoadedAdapter | None = None,
    ) -> Account:
        """Open the ledger of a request that joins for the first time.

        ``tokens`` grows with the answer. ``keys`` None is a cache that shares nothing, or a request
        that reads nothing from it: no hit could reach anything.
        """
        num_prompt_tokens = len(request.prompt_token_ids)
        root = self._root_of(request, sequence, adapter)
        if keys is None:
            ledger = Ledger(num_prompt_tokens, (Span(0, num_prompt_tokens, Cause.TAIL),))
            self._accountant.follow(sequence, tokens, root)
        else:
            self._what_ifs.ask(keys, num_prompt_tokens)
            ledger = self._accountant.open(
                sequence,
                tokens,
                keys,
                root,
                num_prompt_tokens=num_prompt_tokens,
                hit_tokens=hit_tokens,
                waited_for=waited_for,
                computing=computing,
                origins=origins,
            )
        assert ledger.hit_tokens == hit_tokens, "a hit is lost in the ledger"
        account = self.accounts.add(request.id, sequence, ledger, request.origin, request.parts)
        if self.log is not None:
            self.log(account, request.prompt_token_ids, keys or ())
        return account

    def fork(
        self,
        request: Request,
        sequence: int,
        tokens: Sequence[int],
        adapter: LoadedAdapter | None = None,
    ) -> None:
        """One more answer to a prompt that is accounted for begins; ``tokens`` grows with it."""
        self._accountant.follow(sequence, tokens, self._root_of(request, sequence, adapter))
        self.accounts.fork(request.id, sequence)

    def _root_of(self, request: Request, sequence: int, adapter: LoadedAdapter | None) -> Root:
        if adapter is not None:
            self._adapters[sequence] = adapter.name
        return self.root(request.salt, adapter)

    def end(self, sequence: int, keys: KeyChain | None) -> None:
        """A sequence has ended."""
        self._accountant.close(sequence)
        self._adapters.pop(sequence, None)
        if keys is not None:
            self._what_ifs.use(keys.keys)

    def reset(self) -> None:
        """The cache was emptied."""
        self._what_ifs.clear()

    def what_if(self) -> tuple[WhatIf, ...]:
        """Hits with half, one, two and four times the blocks, under the policy in use."""
        return self._what_ifs.result()

    def teller(self, tenant: str | None) -> Storyteller:
        """Tells one reader, a tenant or (None) the operator, of requests."""
        return Storyteller(
            self._tokenizer,
            self._accountant.tokens_of,
            partial(self.accounts.name, tenant=tenant),
            self._groups,
            self._plan.block_size,
            for_operator=tenant is None,
            keeps_apart=self._keeps_apart(),
        )
