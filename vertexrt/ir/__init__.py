"""The IR of vertex functions: programs, the op table, printer, verifier, autodiff and passes."""
