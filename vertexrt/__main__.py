"""Run the command line as `python -m vertexrt`."""

import sys

from vertexrt.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
