"""Write what type checkers and editors read of the optimizers: `python -m tests.optim_stub`."""

import textwrap
from inspect import Parameter, Signature
from pathlib import Path

from vertexrt.api.optimizer_class import signature_of, text_of
from vertexrt.ir.updates import OPTIMIZERS, OptimizerRow

STUB = Path(__file__).resolve().parents[1] / "vertexrt" / "api" / "optim.pyi"
COMMAND = "python -m tests.optim_stub"
HEAD = f'''"""The optimizers of `vrt`, for type checkers: `{COMMAND}` writes this file."""

from collections.abc import Mapping

from vertexrt.api.optimizer import Optimizer
from vertexrt.api.parameter_groups import GroupOptions

OPTIMIZERS: dict[str, type[Optimizer]]
'''


def text() -> str:
    """Return the stub."""
    return HEAD + "".join(_class(row) for row in OPTIMIZERS)


def _class(row: OptimizerRow) -> str:
    doc = textwrap.indent(text_of(row), " " * 4).strip()
    lines = ["", f"class {row.title}(Optimizer):", f'    """{doc}', '    """', ""]
    lines += ["    def __init__(", "        self,"]
    lines += [f"        {each}," for each in _parameters(signature_of(row))]
    return "\n".join([*lines, "    ) -> None: ...", ""])


def _parameters(signature: Signature) -> list[str]:
    found: list[str] = []
    for name, each in signature.parameters.items():
        if each.kind is Parameter.KEYWORD_ONLY and "*" not in found:
            found.append("*")
        default = "" if each.default is Parameter.empty else f" = {each.default!r}"
        found.append(f"{name}: {each.annotation}{default}")
    return found


if __name__ == "__main__":
    STUB.write_text(text(), encoding="utf-8")
