"""OpenAI's Responses: requests made of items, and answers as items and as typed events."""
