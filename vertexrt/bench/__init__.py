"""What `vertexrt bench` measures: ablations and breakdowns; and how it reports and compares.

| file | holds |
| --- | --- |
| `machine.py`, `measure.py`, `spread.py`, `check.py` | where it ran; turns; spread; equality |
| `contender.py`, `ours.py`, `stepper.py` | what takes turns, and vertexrt as one of them |
| `record.py`, `run.py` | the JSON file: its form, reading, writing; what all commands do first |
| `jobs.py`, `switches.py`, `counts.py`, `weights.py`, `ablation.py` | `bench ablation` |
| `text.py` | tables |
| `breakdown/` | `bench breakdown`: one file a part |
| `figures/`, `page.py`, `compare.py` | pictures, the HTML page of `report`, `compare` |
"""
