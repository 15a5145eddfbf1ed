"""Misses of every class that no report has: other APIs, other places, other words.

Each variant is the lines of a log, and what is to be found in which request, where.
"""

from tests.audit.variants import forms, history, markers, others, settings, values
from tests.audit.variants.record import VARIANTS, Variant

__all__ = ["VARIANTS", "Variant", "forms", "history", "markers", "others", "settings", "values"]
