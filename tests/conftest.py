"""Settings of all tests: the IR is verified after every pass, as VERTEXRT_CHECK=1 asks for."""

import os

os.environ.setdefault("VERTEXRT_CHECK", "1")
