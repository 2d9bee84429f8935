"""Run the command line as `python -m vertexrt.cli`."""

import sys

from vertexrt.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
