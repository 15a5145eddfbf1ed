"""Where a request goes, with all that is known: prompts to keys, holdings, policy, books."""
