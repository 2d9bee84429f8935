"""What `vertexrt bench` measures of any vertex function, and how it reports and compares.

`run.py` has what all commands do, `measure.py` how what takes turns is checked and timed,
`record.py` the JSON file and its table. `ablation.py`, `breakdown.py`, `page.py` and `compare.py`
are the commands; `figures.py` draws.
"""
