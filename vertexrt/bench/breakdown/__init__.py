"""`vertexrt bench breakdown`: where the time of a step goes, and what it grows with; a file a part.

| part | file | as in |
| --- | --- | --- |
| time | `time.py`, `device_time.py` | Cavs, tables of time by kind of work; VPPS, figure 10 |
| schedule | `schedule.py` | Cavs, figure 9 |
| throughput | `throughput.py` | VPPS, figures 8 and 9 |
| weights | `weight_loads.py` | VPPS, Table I |
| compile | `compile_time.py`, `compile_once.py` | VPPS, Table II |
"""
