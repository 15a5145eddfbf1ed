"""Replicas across machines, on an existing distributed engine."""
