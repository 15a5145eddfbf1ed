"""Experiments with somebody's prompt cache, over its API: what hits, from where on, how long."""
