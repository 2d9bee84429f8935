"""Random vertex functions, run by vertexrt in every way and compared with an oracle.

`python -m tests.fuzz --help` says how to run any number of them. A function is drawn as plain data
(`generate`, `cells`, `function`) with batches for it (`batches`); `oracle` evaluates it vertex by
vertex, `compare` runs it in one of the ways of `ways`, and `shrink` makes a failure small.

`python -m tests.fuzz.sequences` plays sequences of calls on networks of several vertex types
(`typed`, `typed_batches`, `calls`), and its oracle is PyTorch (`eager`).
"""

import warnings

# Random networks have parameters that nothing reads, and losses that depend on some alone.
warnings.filterwarnings("ignore", ".(compile|step). (nothing reads|'loss' does not depend)")
