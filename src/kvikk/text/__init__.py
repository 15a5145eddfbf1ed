"""Text to tokens and back: tokenisers, chat templates, streams of characters. No tensors."""
