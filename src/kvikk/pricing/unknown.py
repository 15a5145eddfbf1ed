"""What nobody has said or measured: a value of its own, never zero and never None."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unknown:
    """Stands where a number would; ``why`` is one line for a person."""

    why: str
