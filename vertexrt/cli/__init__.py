"""The command line `vertexrt`; `vertexrt.cli.main.main` is its entry point."""
