"""The guesses of one step: of all answers' likeliest next tokens those that are worth computing.

Nobody gives way to a guess, and prompts keep half of the budget. What a guess may bring and what it
costs is ``speculation``'s affair.
"""

from kvikk.cache.records import OutOfBlocks
from kvikk.engine.block_budget import BlockBudget
from kvikk.engine.lookup import Guess
from kvikk.engine.queues import Queues
from kvikk.engine.sequence import Sequence
from kvikk.engine.speculation import MAX_ANSWERS, MAX_DRAFT_TOKENS, Speculation
from kvikk.engine.step import Step


def add_guesses(speculation: Speculation, step: Step, queues: Queues, blocks: BlockBudget) -> None:
    """Add guesses to the answers in a step, as far as they are likely enough to pay."""
    answers = list(step.chunks)
    if not 0 < len(answers) <= MAX_ANSWERS:
        return
    # Every guess wants a row of logits more.
    alone = queues.num_sequences == len(answers)
    budget = min(step.rows, step.budget if alone else step.budget // 2)
    likely = speculation.least_chance(len(answers))
    drafts = [(one, _guess(speculation, one, likely, budget)) for one in answers]
    chances = sorted([guess.chance for _, draft in drafts for guess in draft], reverse=True)
    left = speculation.num_worthwhile(len(answers), chances[: max(budget, 0)])
    least = chances[left - 1] if left else 1.0
    for sequence, guesses in drafts:
        draft = [guess.token_id for guess in guesses[:left] if guess.chance >= least]
        if not draft:
            continue
        try:
            blocks.extend(step, sequence, 1 + len(draft))
        except OutOfBlocks:
            del draft[sequence.room - sequence.num_computed - 1 :]
        sequence.draft = draft
        step.chunks[sequence] += len(draft)
        step.budget -= len(draft)
        step.rows -= len(draft)
        left -= len(draft)


def _guess(
    speculation: Speculation, sequence: Sequence, least_chance: float, budget: int
) -> list[Guess]:
    """What may follow an answer, as far as there is room for it."""
    room = sequence.max_tokens - len(sequence.token_ids) - 1
    most = min(MAX_DRAFT_TOKENS, budget, room)
    if most <= 0 or sequence.num_forks or not sequence.has_told_prompt:
        return []
    if sequence.drafter is None:  # not before: those that wait in the queue need no memory
        sequence.drafter = speculation.drafter(sequence.request, sequence.max_tokens)
    return sequence.drafter.draft(sequence.token_ids, least_chance, most)
