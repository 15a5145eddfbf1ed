"""The state of one request inside the engine, from its arrival to its end."""

from collections.abc import Sequence as Tokens

from kvikk.backends.base import LogitsEdit
from kvikk.cache.keys import KeyChain
from kvikk.engine.adapters import LoadedAdapter
from kvikk.engine.answer_text import AnswerText
from kvikk.engine.chance import uniform
from kvikk.engine.edits import LogitsEditor
from kvikk.engine.pooling import PooledPrompt
from kvikk.engine.requests import Request, Timings, TokenLogprob, Usage
from kvikk.engine.speculation import Drafter

NO_ROW = -1


class Sequence:
    """Tokens known, tokens computed, and where the request stands.

        position   0 … num_computed … len(token_ids)       room ≥ num_computed
                   [  in blocks  )[   remaining     )[   draft   )

    ``draft`` are guesses of the next tokens, which a step computes together with the last known one
    and forgets.
    ``number`` counts arrivals: smaller is older. It is also the sequence's name in the cache.
    ``row`` is its row in the batch's block tables while it runs. ``awaited`` is the running
    sequence whose blocks it waits for, and ``awaited_tokens`` how far that one must have come.
    Everything but the blocks outlives a preemption: tokens, seed, text.

    A request with several answers is one sequence until its prompt is computed. Then ``num_forks``
    more are made of it, each with its ``choice``, that share its blocks.
    """

    __slots__ = (
        "adapter",
        "awaited",
        "awaited_tokens",
        "cached_tokens",
        "choice",
        "draft",
        "drafter",
        "editor",
        "end_token_ids",
        "is_greedy",
        "is_loading",
        "keys",
        "machine_s",
        "max_tokens",
        "num_computed",
        "num_forks",
        "num_keyed",
        "num_prompt_tokens",
        "number",
        "only_chooses",
        "pooled",
        "prompt_logprobs",
        "rank",
        "request",
        "room",
        "row",
        "seed",
        "table_changed",
        "text",
        "timings",
        "token_ids",
        "waited_for",
    )

    def __init__(
        self,
        number: int,
        request: Request,
        *,
        max_tokens: int,
        seed: int,
        end_token_ids: frozenset[int],
        keys: KeyChain | None,
        text: AnswerText | None,
        arrived_s: float,
        choice: int = 0,
        adapter: LoadedAdapter | None = None,
    ) -> None:
        self.number = number
        self.rank = (request.priority, number)  # smaller goes first
        self.request = request
        self.adapter = adapter
        self.max_tokens = max_tokens  # prompt and answer together
        self.seed = seed
        self.is_greedy = request.generation.sampling.temperature == 0  # no chance is wanted
        self.end_token_ids = end_token_ids
        self.keys = keys  # None: nothing is shared, so nothing is named
        self.text = text
        self.choice = choice
        self.editor = LogitsEditor.for_request(
            request.generation, len(request.prompt_token_ids), end_token_ids
        )
        # Whether of its logits nothing is wanted but where the largest is.
        tells = (request.generation.num_logprobs, request.generation.num_prompt_logprobs)
        self.only_chooses = self.is_greedy and self.editor is None and tells == (None, None)
        self.num_forks = request.generation.choices - 1 if choice == 0 else 0
        # Of the prompt's tokens but the first, as far as computed; None where nobody asks.
        self.prompt_logprobs: list[TokenLogprob] | None = None
        tells_prompt = request.generation.num_prompt_logprobs is not None
        if tells_prompt and choice == 0 and request.pooling is None:
            self.prompt_logprobs = []
        self.pooled: PooledPrompt | None = None
        if request.pooling is not None:
            self.pooled = PooledPrompt(request.pooling, len(request.prompt_token_ids))
        self.drafter: Drafter | None = None  # from its first guess on
        self.draft: list[int] = []
        self.token_ids = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed = 0
        self.num_keyed = 0
        self.room = 0  # positions that have blocks
        self.row = NO_ROW
        self.is_loading = False  # holds blocks that are being filled from a tier
        self.table_changed = False
        self.awaited: Sequence | None = None
        self.awaited_tokens = 0
        self.waited_for: int | None = None  # the last one it waited for
        self.cached_tokens: int | None = None  # set once, at the first admission
        self.timings = Timings(arrived_s)  # replaced at each moment
        self.machine_s = 0.0  # of the steps it was in, its share

    @property
    def remaining(self) -> int:
        """Known tokens that are not computed: 1 while decoding."""
        return len(self.token_ids) - self.num_computed

    @property
    def is_running(self) -> bool:
        """Whether it holds blocks."""
        return self.row != NO_ROW

    @property
    def num_generated(self) -> int:
        """Tokens of the answer so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def has_told_prompt(self) -> bool:
        """Whether the prompt's log-probabilities are all known, or nobody asks for them."""
        known = self.prompt_logprobs
        return known is None or len(known) >= self.num_prompt_tokens - 1

    @property
    def decodes(self) -> bool:
        """Whether all that is left is one token after the other, of the model as it is."""
        asks_for_more = self.pooled is not None or self.adapter is not None or self.num_forks > 0
        return self.remaining == 1 and self.has_told_prompt and not asks_for_more

    @property
    def reads_cache(self) -> bool:
        """Whether cached blocks may stand for a part of the prompt: nobody has to see it all."""
        return self.has_told_prompt and not (self.pooled is not None and self.pooled.needs_all)

    def num_hidden(self, count: int) -> int:
        """For how many of the next ``count`` tokens, the last ones, hidden states are wanted."""
        return 0 if self.pooled is None else self.pooled.num_wanted(self.num_computed + count)

    def num_logits(self, count: int) -> int:
        """For how many of the next ``count`` tokens, the last ones, logits are wanted.

        For the last known one and the guesses after it; or for the prompt's that are not told yet.
        """
        if self.pooled is not None:
            return 0
        stop = self.num_computed + count
        if self.prompt_logprobs is not None and not self.has_told_prompt:
            return max(0, stop - max(self.num_computed, len(self.prompt_logprobs)))
        return 1 + len(self.draft) if stop >= len(self.token_ids) else 0

    def edit(self, ahead: int) -> LogitsEdit | None:
        """What is done to the logits of the next token, or of one behind ``ahead`` guesses."""
        if self.editor is None:
            return None
        return self.editor.edit(self.token_ids, self.draft[:ahead])

    def is_waiting_for_blocks(self) -> bool:
        """Whether a running sequence is still computing blocks that this one shall share.

        Not when that one has come far enough, nor when it has ended or was preempted.
        """
        awaited = self.awaited
        if awaited is None:
            return False
        if awaited.is_running and awaited.num_computed < self.awaited_tokens:
            return True
        self.awaited = None
        return False

    def block_keys(self, num_tokens: int) -> Tokens[bytes]:
        """Keys of the full blocks of the first ``num_tokens`` tokens or more."""
        if self.keys is None:
            return ()
        if num_tokens > self.num_keyed:
            self.keys.extend(self.token_ids[self.num_keyed : num_tokens])
            self.num_keyed = num_tokens
        return self.keys.keys

    def uniform(self, ahead: int = 0) -> float:
        """The chance of the next token, or of one ``ahead`` of it; 0 where none is wanted."""
        return 0.0 if self.is_greedy else uniform(self.seed, self.num_generated + ahead)

    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(self.num_prompt_tokens, self.cached_tokens or 0, self.num_generated)
