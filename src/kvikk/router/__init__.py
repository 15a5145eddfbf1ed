"""Fleets: which replica holds what, where a request goes and why, and what if."""
