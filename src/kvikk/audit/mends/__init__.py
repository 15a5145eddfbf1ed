"""Mends put into requests, and a log played again with them: what would have been saved."""
