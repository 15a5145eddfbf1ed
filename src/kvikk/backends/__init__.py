"""Whatever runs a decoder over paged blocks. Everything above knows only `base`."""
