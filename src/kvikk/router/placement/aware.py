"""The placement that knows: prompts to keys, the index, a policy, and what came of it.

It implements the proxy's ``Placement``; everything happens in the event loop, and what need not be
known before a request goes out (the books and their oracles) is done when its answer has gone out.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import cast

from kvikk.router.deciding import decide
from kvikk.router.holdings.index import PrefixIndex
from kvikk.router.holdings.tree import PrefixTree
from kvikk.router.placement.books import Answer, FleetBooks
from kvikk.router.placement.capacity import ask_capacity
from kvikk.router.placement.chunk_keys import CHUNK_BYTES
from kvikk.router.placement.decision_log import KEY_BYTES, DecisionLog
from kvikk.router.placement.figures import exposition, fleet_json, page
from kvikk.router.placement.options import PlacementOptions
from kvikk.router.placement.prompts import (
    BYTES_PER_TOKEN,
    CHUNK_TOKENS,
    DEFAULT_BLOCK_TOKENS,
    Prompt,
    may_have_key,
    read_prompt,
)
from kvikk.router.placement.replica import Holder
from kvikk.router.policies import POLICIES
from kvikk.router.proxy.placement import Asked, Outcome
from kvikk.router.rates import ArrivalRate
from kvikk.router.records import Decision, ReplicaView, RoutedRequest

_MOST_SESSIONS = 1 << 17
_MOST_MODELS = 1024
_CAPACITY_INTERVAL_S = 10.0
_TICK_S = 0.25
# Weight of a model's bytes per token so far; a fixed overhead of the template is in it.
_TEXT_TOKENS = 50_000.0


class _Read:
    """What is kept with a request on its way: of the prompt, and tokens its first one waits for."""

    __slots__ = ("is_stream", "prompt", "work_tokens")

    def __init__(self, prompt: Prompt, is_stream: bool) -> None:
        self.prompt = prompt
        self.is_stream = is_stream
        self.work_tokens = 0.0


class _ModelState:
    """Of one model: whose turn it is, how fast requests come, how many bytes a token has."""

    __slots__ = ("bytes_per_token", "rate", "text_tokens", "turn")

    def __init__(self) -> None:
        self.turn = 0
        self.rate = ArrivalRate()
        self.bytes_per_token = BYTES_PER_TOKEN
        self.text_tokens = 0.0

    def calibrate(self, content_bytes: int, tokens: int) -> None:
        """A prompt of so many bytes of content was so many tokens."""
        if content_bytes and tokens:
            kept = min(self.text_tokens, _TEXT_TOKENS)
            total_bytes = kept * self.bytes_per_token + content_bytes
            self.bytes_per_token = total_bytes / (kept + tokens)
            self.text_tokens = kept + tokens


class AwarePlacement:
    """Sends requests where their prefix lives, as far as load allows, and keeps the books."""

    def __init__(self, options: PlacementOptions) -> None:
        self.books = FleetBooks()
        self.learned = PrefixTree()
        self.index = PrefixIndex()
        self.holders: dict[int, Holder] = {}
        self.policy = POLICIES[options.policy]
        self._options = options
        self._log = None if options.decision_log is None else DecisionLog(options.decision_log)
        self._models: OrderedDict[str, _ModelState] = OrderedDict()
        self._homes: OrderedDict[bytes, int] = OrderedDict()
        self._num_slots = 0
        self._told_sizes: tuple[int, ...] = ()
        self._adapters: frozenset[str] = frozenset()

    def joined(self, view: ReplicaView, url: str) -> None:
        """See ``Placement.joined``."""
        source = self._options.event_source(url)
        blocks = self._learned_blocks(view)
        self.holders[view.slot] = Holder(
            view, url, self.learned, self.index, source, blocks, self._follow_told
        )
        self._num_slots = max(self.holders) + 1

    def left(self, slot: int) -> None:
        """See ``Placement.left``."""
        holder = self.holders.pop(slot)
        holder.clear()
        if holder.task is not None:
            holder.task.cancel()
        self._follow_told()

    def forgotten(self, slot: int, because: str) -> None:
        """See ``Placement.forgotten``."""
        if slot in self.holders:
            self.holders[slot].clear()

    def foresee(
        self, asked: Asked, replicas: Sequence[ReplicaView], tried: Collection[int]
    ) -> ReplicaView | None:
        """See ``Placement.foresee``.

        A policy that looks at no prompt need not wait until this one is read: it is read while the
        replica has the request already.
        """
        if self.policy.looks_at_prompt or may_have_key(asked):
            return None
        eligible = [one for one in replicas if one.eligible and one.slot not in tried]
        if len(eligible) < 2:
            return eligible[0] if eligible else None
        turn = self._model(asked.model).turn + 1
        request = RoutedRequest(asked.id, asked.model, asked.tenant, turn, 0, ())
        return self.policy.choose(request, eligible)[0]

    def read(self, asked: Asked) -> RoutedRequest:
        """See ``Placement.read``."""
        prompt = read_prompt(asked, self._options.text_side, self._told_sizes, self._adapters)
        state = self._model(asked.model)
        state.turn += 1
        is_text = prompt.block_tokens == 0
        tokens = round(prompt.size / state.bytes_per_token) if is_text else prompt.size
        tokens = max(1, tokens or len(asked.body) // 4)
        return RoutedRequest(
            asked.id,
            asked.model,
            asked.tenant,
            state.turn,
            tokens,
            self._hit_tokens(prompt, state, tokens),
            prompt.prefix,
            self._homes.get(prompt.session),
            state.rate.arrived(time.monotonic()),
            _Read(prompt, bool(asked.json and asked.json.get("stream"))),
            prompt.key,
        )

    def decide(
        self, request: RoutedRequest, replicas: Sequence[ReplicaView], tried: Collection[int]
    ) -> Decision:
        """See ``Placement.decide``."""
        decision = decide(self.policy, request, replicas, tried)
        view, read = decision.replica, cast(_Read, request.prompt)
        read.work_tokens = view.waiting_tokens + request.prompt_tokens - decision.hit_tokens
        self._learn(self.holders[view.slot], read.prompt)
        if read.prompt.session:
            self._homes.pop(read.prompt.session, None)
            self._homes[read.prompt.session] = view.slot
            if len(self._homes) > _MOST_SESSIONS:
                self._homes.popitem(last=False)
        return decision

    def answered(self, request: RoutedRequest, decision: Decision, outcome: Outcome) -> None:
        """See ``Placement.answered``."""
        read = cast(_Read, request.prompt)
        prompt = read.prompt
        holder = self.holders.get(decision.replica.slot)
        if holder is None or holder.view is not decision.replica:
            return
        if holder.promised is not None and prompt.told:
            holder.promised.settle(prompt.blocks)
        if outcome.error or outcome.status != 200:
            return
        if read.is_stream and outcome.first_byte_s is not None:
            holder.measured(read.work_tokens, outcome.first_byte_s)
        self._account(request, decision, outcome, holder, prompt)

    def metrics(self) -> str:
        """See ``Placement.metrics``."""
        return exposition(self)

    def page(self, path: str) -> tuple[str, bytes] | None:
        """See ``Placement.page``."""
        if path == "/v1/kvikk/fleet":
            return fleet_json(self)
        return page(path)

    async def run(self) -> None:
        """Listen to replicas that tell, and ask how much all of them hold."""
        asked_s = -_CAPACITY_INTERVAL_S
        try:
            while True:
                for holder in self.holders.values():
                    if holder.subscription is not None and holder.task is None:
                        holder.task = asyncio.create_task(holder.subscription.run())
                if time.monotonic() - asked_s >= _CAPACITY_INTERVAL_S:
                    asked_s = time.monotonic()
                    await self._ask_capacities()
                await asyncio.sleep(_TICK_S)
        finally:
            for holder in self.holders.values():
                if holder.task is not None:
                    holder.task.cancel()
            if self._log is not None:
                self._log.close()

    def _model(self, name: str) -> _ModelState:
        state = self._models.get(name)
        if state is None:
            state = self._models[name] = _ModelState()
            if len(self._models) > _MOST_MODELS:
                self._models.popitem(last=False)
        return state

    def _hit_tokens(self, prompt: Prompt, state: _ModelState, prompt_tokens: int) -> list[int]:
        """For each slot, what that replica is believed to hold of the prompt."""
        num_slots = self._num_slots
        learned = self.learned.hit_blocks(prompt.keys, num_slots)
        if prompt.told:
            learned = list(map(max, learned, self.index.hit_blocks(prompt.blocks, num_slots)))
        block_tokens = prompt.block_tokens or CHUNK_BYTES / state.bytes_per_token
        most = prompt_tokens - 1  # the last token always runs
        hits = [blocks and min(round(blocks * block_tokens), most) for blocks in learned]
        for view in prompt.told:
            reach = most // view.block_tokens * view.block_tokens
            told = self.index.hit_blocks(view.keys, num_slots)
            for slot, blocks in enumerate(told):
                if blocks:
                    hits[slot] = max(hits[slot], min(blocks * view.block_tokens, reach))
        return hits

    def _learn(self, holder: Holder, prompt: Prompt) -> None:
        """The replica will hold this prompt: it says so itself soon, or it is remembered here."""
        if holder.promised is not None and holder.tells and prompt.told:
            holder.promised.promise(prompt.blocks)
        else:
            holder.learned.use(prompt.keys)

    def _account(
        self,
        request: RoutedRequest,
        decision: Decision,
        outcome: Outcome,
        holder: Holder,
        prompt: Prompt,
    ) -> None:
        reported, state = outcome.reported, self._model(request.model)
        prompt_tokens, predicted = request.prompt_tokens, decision.hit_tokens
        hit = predicted
        if reported is not None and reported.prompt_tokens > 0:
            prompt_tokens = reported.prompt_tokens
            if prompt.block_tokens == 0:
                state.calibrate(prompt.size, prompt_tokens)
            if reported.cached_tokens is not None:
                hit = min(reported.cached_tokens, prompt_tokens)
                self._compare(holder, prompt, prompt_tokens, predicted, hit)
        block_tokens = prompt.block_tokens or CHUNK_BYTES / state.bytes_per_token
        others = self._told_elsewhere(prompt, prompt_tokens, holder) if prompt.told else 0
        self.books.take(
            Answer(
                decision.replica.id,
                prompt.keys,
                block_tokens,
                prompt.session,
                prompt_tokens,
                hit,
                decision.elsewhere_tokens,
                decision.elsewhere_because,
                others - max(hit, decision.hit_tokens + decision.elsewhere_tokens),
            )
        )
        if self._log is not None:
            self._log.write(
                {
                    "at": time.time() - outcome.whole_s,
                    "id": request.id,
                    "model": request.model,
                    "tenant": request.tenant,
                    "session": prompt.session.hex()[:16],
                    "key": prompt.key.hex()[:16],
                    "prompt_tokens": prompt_tokens,
                    "completion_tokens": reported.completion_tokens if reported else 0,
                    # Of content, a nominal size: a trace has one, whatever tokens turn out to be.
                    "block_size": prompt.block_tokens or CHUNK_TOKENS,
                    "block_keys": [key[:KEY_BYTES].hex() for key in prompt.keys.split()],
                    "replica": decision.replica.id,
                    "policy": decision.policy,
                    "reason": decision.reason,
                    "predicted_tokens": predicted,
                    "cached_tokens": hit,
                    "elsewhere_tokens": decision.elsewhere_tokens,
                    "elsewhere": decision.elsewhere,
                    "elsewhere_because": decision.elsewhere_because,
                    "first_byte_s": outcome.first_byte_s,
                }
            )

    def _compare(
        self, holder: Holder, prompt: Prompt, prompt_tokens: int, predicted: int, reported: int
    ) -> None:
        """Hold what was believed against what was reused, and believe more or less from now on."""
        holder.drift.note(prompt_tokens, min(predicted, prompt_tokens), reported)
        # Content is cut elsewhere than a replica's blocks: what is within one of them is no error.
        size = prompt.block_tokens
        slack = size or max(128, prompt_tokens // 10)
        if abs(predicted - reported) > slack and not (holder.tells and prompt.told):
            holder.learned.correct(predicted, reported)

    def _told_elsewhere(self, prompt: Prompt, prompt_tokens: int, holder: Holder) -> int:
        """The most that another replica holds of the prompt, as they tell by now."""
        most = 0
        for view in prompt.told:
            hits = self.index.hit_blocks(view.keys, self._num_slots)
            hits[holder.view.slot] = 0
            most = max(most, min(max(hits) * view.block_tokens, prompt_tokens - 1))
        return most

    def _follow_told(self) -> None:
        """Which block sizes and adapters replicas tell of; prompts are keyed for these."""
        told = [one.told for one in self.holders.values() if one.told is not None and one.tells]
        self._told_sizes = tuple(sorted({size for one in told for size in one.block_sizes}))
        self._adapters = frozenset().union(*(one.adapters for one in told))

    async def _ask_capacities(self) -> None:
        """Ask every replica how much it holds, and bound what is believed of it by that."""
        holders = list(self.holders.values())
        found = await asyncio.gather(
            *(ask_capacity(one.url, self._options.replica_key) for one in holders)
        )
        for holder, tokens in zip(holders, found, strict=True):
            if tokens is not None:
                holder.view.capacity_tokens = tokens
                holder.learned.bound(self._learned_blocks(holder.view))
        self.books.fleet(
            {one.view.id: one.learned.capacity_blocks for one in self.holders.values()}
        )

    def _learned_blocks(self, view: ReplicaView) -> int:
        tokens = view.capacity_tokens or self._options.capacity_tokens
        if self._options.text_side is not None:
            return max(1, tokens // (self._told_sizes or (DEFAULT_BLOCK_TOKENS,))[0])
        mean = [state.bytes_per_token for state in self._models.values()] or [BYTES_PER_TOKEN]
        return max(1, round(tokens * (sum(mean) / len(mean)) / CHUNK_BYTES))
