"""The `cpu` backend: LLVM rendered from the kernel IR, and BLAS."""
