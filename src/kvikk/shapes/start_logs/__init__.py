"""Engines' start-up logs: what they print about their cache, beside what it should be."""
