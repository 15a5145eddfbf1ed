"""One file a route, or a pair of routes on one thing."""
