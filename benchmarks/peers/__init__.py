"""The same jobs in vertexrt, PyTorch and DyNet, as an expert would write them.

| file | holds |
| --- | --- |
| `run.py`, `options.py`, `ours.py` | the run, what it is told, vertexrt as a contender |
| `suites.py` | the jobs: a vertex function and the graphs it runs on |
| `torch_peer.py`, `torch_suites.py` | what all PyTorch peers share; which job each does |
| `levels.py`, `complete.py`, `packed.py` | schedules of a minibatch, as the peers need them |
| `tree_lstm*.py`, `tree_fc.py`, `lstm*.py` | PyTorch |
| `dynet_tree_lstm.py` | DyNet |
"""
