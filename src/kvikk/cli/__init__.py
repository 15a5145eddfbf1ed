"""The terminal: one file a verb, no logic."""
