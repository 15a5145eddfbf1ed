"""Tables as plain text: as wide as they need to be, whatever the terminal."""

from collections.abc import Sequence


def columns(
    rows: Sequence[Sequence[str]], right: Sequence[int] = (), indent: str = "", gap: str = "  "
) -> str:
    """``rows`` in aligned columns; those whose index is in ``right`` end together."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        indent
        + gap.join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
