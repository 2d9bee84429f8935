"""The CPU in place of a GPU: the same CUDA source, compiled by a C++ compiler."""
