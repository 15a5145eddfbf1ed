"""Fleets: which replica holds what, where a request goes and why, and what if."""

from kvikk.router.compiled import take_sources_unless_current

take_sources_unless_current()
