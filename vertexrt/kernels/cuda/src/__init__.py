"""CUDA sources of kernels, and what generated kernels include."""
