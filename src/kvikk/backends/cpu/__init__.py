"""The fast CPU backend: numba kernels over quantised weights and paged blocks."""
