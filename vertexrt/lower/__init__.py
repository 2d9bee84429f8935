"""The kernel IR: what a kernel does and where its values lie, decided before text is written."""
