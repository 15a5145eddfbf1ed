"""What a token costs in bytes: one record a layer, and the arithmetic."""
