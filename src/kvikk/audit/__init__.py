"""Request logs in, causes and money out: why a hosted prompt cache missed, where, and the mend."""
