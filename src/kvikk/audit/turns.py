"""What is left of two prompts behind their first difference, and how it lies beside each other.

before   … = = = [ a ][ b ][ c ]                 the live turn: all behind the last answer
after    … = = = [ x ][ b ][ c ][ d ][ e ]       b and c are equal, a became x, d and e are new
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kvikk.audit.difference import Divergence, common_suffix, same_place
from kvikk.audit.prompt import Prompt, Slot

# So few pieces that match in a row may do so by chance, unless they weigh something.
_CHANCE_PIECES = 2
_CHANCE_WEIGHT = 8.0
# Of a changed text, what must be left at its end to be called fixed.
_FIXED_WEIGHT = 24.0


@dataclass(frozen=True)
class Remainder:
    """Both rests from the first difference on. Neither is empty."""

    before: tuple[Slot, ...]
    after: tuple[Slot, ...]
    live: bool
    whole_before: Prompt
    whole_after: Prompt
    place: Divergence

    @property
    def old(self) -> Slot:
        """The first piece that became another."""
        return self.before[0]

    @property
    def new(self) -> Slot:
        """What it became."""
        return self.after[0]

    @cached_property
    def goes_on(self) -> bool:
        """Whether an answer stands behind the difference in the later prompt: it is history."""
        answers = self.after if self.old.role != "assistant" else self.after[1:]
        return any(slot.role == "assistant" for slot in answers)

    @cached_property
    def inserted(self) -> tuple[Slot, ...]:
        """Pieces put in front of what stood here before; empty if they were not just inserted."""
        return self.after[: _found(self.before, self.after)]

    @cached_property
    def removed(self) -> tuple[Slot, ...]:
        """Pieces taken out in front of what still stands here."""
        return self.before[: _found(self.after, self.before)]

    @cached_property
    def equal_after(self) -> tuple[Slot, ...]:
        """Pieces of the later prompt, behind the difference, that the earlier one had there too."""
        theirs = {slot.piece.digest for slot in self.before}
        return tuple(slot for slot in self.after if slot.piece.digest in theirs)

    @cached_property
    def equal_weight_after(self) -> float:
        """The weight of equal text behind the difference, in this piece and in later ones."""
        return self.suffix_weight + sum(slot.piece.weight for slot in self.equal_after)

    @cached_property
    def suffix_weight(self) -> float:
        """The weight of equal text at the end of this piece."""
        if not same_place(self.old, self.new):
            return 0.0
        theirs, ours = self.old.piece.text, self.new.piece.text
        most = min(len(theirs), len(ours)) - self.place.character
        same = common_suffix(theirs, ours, most)
        return same / len(ours) * self.new.piece.weight if ours else 0.0

    @property
    def is_fixed_after(self) -> bool:
        """Whether text worth a word follows the change, equal in both prompts."""
        return self.equal_weight_after >= _FIXED_WEIGHT

    @cached_property
    def is_same_conversation(self) -> bool:
        """Whether messages behind the difference are the same ones, and not by chance."""
        equal = [slot for slot in self.equal_after if slot.section == "messages"]
        weight = sum(slot.piece.weight for slot in equal)
        return len(equal) > _CHANCE_PIECES or weight >= _CHANCE_WEIGHT


def remainder(before: Prompt, after: Prompt, place: Divergence) -> Remainder:
    """What is left of both behind ``place``."""
    last_answer = max(
        (index for index, slot in enumerate(before.slots) if slot.role == "assistant"), default=-1
    )
    return Remainder(
        before.slots[place.index :],
        after.slots[place.index :],
        place.index > last_answer and before.slots[place.index].section == "messages",
        before,
        after,
        place,
    )


def _found(needle: Sequence[Slot], hay: Sequence[Slot]) -> int:
    """Where ``needle``'s beginning stands in ``hay``, from 1 on; 0 if nowhere."""
    if not needle:
        return 0
    for start in range(1, len(hay)):
        matched, weight = 0, 0.0
        for one, other in zip(needle, hay[start:], strict=False):
            if one.piece.digest != other.piece.digest:
                break
            matched += 1
            weight += one.piece.weight
        whole = matched == len(needle)
        if matched > _CHANCE_PIECES or (matched and (whole or weight >= _CHANCE_WEIGHT)):
            return start
    return 0
