"""What a provider would have billed, and what our own hardware cost: beside the physical ledger."""
