"""Anthropic's Messages: requests, answers, errors and the list of models, as that API has them."""
