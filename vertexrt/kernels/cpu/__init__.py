"""The `cpu` backend: numba code generated from the op table, and BLAS."""
