"""The same jobs in vertexrt and in PyTorch as an expert would write them; `python -m` runs it.

| file | holds |
| --- | --- |
| `__main__.py`, `options.py` | the run, the command line |
| `suites.py` | the jobs: a vertex function and the graphs it runs on |
| `contender.py`, `ours.py`, `torch_peer.py` | what takes turns: vertexrt and PyTorch |
| `check.py`, `measure.py`, `report.py` | first equal numbers, then time, then table and JSON |
| `levels.py`, `complete.py`, `packed.py` | schedules of a minibatch, as the peers need them |
| `tree_lstm*.py`, `tree_fc.py`, `lstm*.py` | the peers; `recursive.py` only compares numbers |
"""
