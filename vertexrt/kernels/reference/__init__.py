"""The `reference` backend: plain NumPy, node by node; the oracle of all others."""
