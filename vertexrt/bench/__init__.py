"""What `vertexrt bench` measures of any vertex function, and how it reports and compares.

`run.py` has what all commands do, `measure.py` how what takes turns is checked and
timed, `record.py` the JSON file. `ablation.py` and `switches.py`, `breakdown.py` and
`device_time.py`, `page.py` and `compare.py` are the commands; `text.py` and `figures.py` show.
"""
