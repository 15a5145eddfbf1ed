"""What an engine sets aside for a conversation, which is more than the arithmetic says.

One file an engine, each a few rules and where they stand in that engine's source.
"""
