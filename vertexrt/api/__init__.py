"""What users write: vertex functions, parameters, optimizers, compile and checkpoints.

The public names are re-exported by the package itself.
"""
