"""What the papers show. For any model: `python -m benchmarks.papers`, next to the time of a step.

| part | file | as in |
| --- | --- | --- |
| schedule | `schedule.py` | Cavs, figure 9 |
| throughput | `throughput.py` | VPPS, figures 8 and 9 |
| weights | `weights.py` | VPPS, Table I |
| compile | `compile_time.py`, `compile_once.py` | VPPS, Table II |

Each of the others is a command of its own, `python -m benchmarks.papers.NAME`:

| command | as in |
| --- | --- |
| `ecornn_grid`, `ecornn_layout` | EcoRNN: training of LSTM layers, products in two layouts |
| `grnn_latency` | GRNN: requests of layers and of two models |
| `persistent_rnn` | Persistent RNN: a layer over batch and hidden sizes, deep stacks |
| `vpps_applications` | VPPS: its six applications over batch sizes |

The results are a file as `vertexrt bench` writes them, for `vertexrt bench report` and `compare`.
"""
