"""The measurements: what the cache saves, what it weighs, what a server does under load."""
