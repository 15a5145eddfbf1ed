from collections.abc import Sequence


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many elements two sequences begin with in common."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
