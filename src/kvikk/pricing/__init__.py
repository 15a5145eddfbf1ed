"""What a token costs in money: dated provider rules and price rows. Standard library only."""
