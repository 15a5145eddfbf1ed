"""What if: a trace under other policies, replica counts and memory, with the live router's code."""
