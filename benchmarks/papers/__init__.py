"""What the papers show apart from the time of a step, for any model: `python -m benchmarks.papers`.

| part | file | as in |
| --- | --- | --- |
| schedule | `schedule.py` | Cavs, figure 9 |
| throughput | `throughput.py` | VPPS, figures 8 and 9 |
| weights | `weights.py` | VPPS, Table I |
| compile | `compile_time.py`, `compile_once.py` | VPPS, Table II |

The results are a file as `vertexrt bench` writes them, for `vertexrt bench report` and `compare`.
"""
