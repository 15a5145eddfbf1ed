"""``kvikk serve``: the HTTP server."""
