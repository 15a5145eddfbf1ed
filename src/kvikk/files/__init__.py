"""Where models are and how they lie on disk: names to paths, headers, tensors as memory maps."""
