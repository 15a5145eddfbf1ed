"""Fleets: which replica holds what, where a request goes and why, and what if."""

from kvikk.router.compiled import take_what_is_compiled

take_what_is_compiled()
