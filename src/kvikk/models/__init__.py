"""What a decoder is, as data, with its weights. How to run one is a backend's affair."""
