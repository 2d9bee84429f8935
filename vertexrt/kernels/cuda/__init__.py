"""The `cuda` backend: generated kernels through NVRTC, products through cuBLAS."""
