"""What each replica holds, as far as the router knows: told by KV events, else guessed."""
