"""What a check is told, what it answers, and numbers as logs print them."""

from dataclasses import dataclass

from kvikk.shapes.dtypes import KvDtypes
from kvikk.shapes.shape import ModelShape


@dataclass(frozen=True)
class Subject:
    """The model and what is known about how it was started; what a log says comes first.

    ``variants`` are other ways in which engines have kept the same model's cache, each with the
    rule in words: the first that explains a printed figure is named.
    """

    shape: ModelShape
    dtypes: KvDtypes | None = None
    tp: int = 1
    dp_attention: bool = False
    variants: tuple[tuple[str, ModelShape], ...] = ()


@dataclass(frozen=True)
class Comparison:
    """One figure of a log: as printed, as computed, and by which rule."""

    line_number: int
    figure: str
    printed: str
    computed: str
    agrees: bool
    rule: str


@dataclass(frozen=True)
class Printed:
    """A number as printed: it stands for everything that rounds to it."""

    text: str

    @property
    def value(self) -> float:
        """The number itself."""
        return float(self.text.replace(",", ""))

    @property
    def half_unit(self) -> float:
        """Half of its last digit."""
        return 0.5 * 10.0 ** -len(self.text.partition(".")[2])

    def agrees(self, computed: float) -> bool:
        """Whether ``computed`` would be printed like this, by rounding."""
        return abs(computed - self.value) <= self.half_unit * (1 + 1e-9)

    def like(self, computed: float) -> str:
        """``computed``, with as many digits."""
        return f"{computed:,.{len(self.text.partition('.')[2])}f}"
