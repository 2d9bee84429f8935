"""What `vertexrt bench` measures of any vertex function, and how it reports and compares.

| file | holds |
| --- | --- |
| `run.py`, `machine.py` | F and its graphs, what all commands do; where they ran |
| `contender.py`, `check.py`, `measure.py` | what takes turns, and counts; equality; turns |
| `record.py`, `read_record.py` | the JSON file: its form, noise, writing; reading |
| `switches.py`, `ablation.py` | `bench ablation` |
| `breakdown.py`, `device_time.py` | `bench breakdown` |
| `text.py`, `figures.py`, `page.py`, `compare.py` | tables, pictures, `report`, `compare` |
"""
