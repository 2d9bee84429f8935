"""Single questions beside `vertexrt bench`; each is run with `python -m benchmarks.NAME`."""
