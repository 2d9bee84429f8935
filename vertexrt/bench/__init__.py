"""What `vertexrt bench` measures of any vertex function, and how it reports and compares.

`run.py` has what all commands do, `measure.py` how what takes turns is checked and timed,
`record.py` the JSON file and its table. `ablation.py`, `breakdown.py`, `page.py` and `compare.py`
are the commands; `figures.py` draws.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["Passes"]

if TYPE_CHECKING:
    from vertexrt.engine.variant import Passes
else:

    def __getattr__(name: str) -> Any:
        """Load `Passes` when it is asked for: some commands of `vertexrt bench` need no engine."""
        if name not in __all__:
            raise AttributeError(f"module 'vertexrt.bench' has no attribute {name!r}")
        return getattr(import_module("vertexrt.engine.variant"), name)
