"""The `reference` backend: kernels interpreted in NumPy; the oracle of what renders them."""
