"""Models from files of users: `my_model.py:MyNet`. To load one is to run the file."""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from vertexrt.api.vertex_function import Model, VertexFunction
from vertexrt.checks import is_real
from vertexrt.errors import UsageError, nearest
from vertexrt.models.catalogue import OWN, OWN_TRAIN, ModelSpec, get


def find(name: str, task: str, format: str) -> ModelSpec:
    """Find a model by its name, or in a file, which is run.

    Args:
        name: of the catalogue, or FILE.py:CLASS.
        task, format: of a model in a file.
    Raises: UsageError, when there is no such model, file or class; whatever the file raises.
    """
    found = OWN.fullmatch(full_name(name))
    if found is None:
        return get(name)
    path, title = Path(found[1]), found[2]
    if not path.is_file():
        raise UsageError.at(
            "model",
            f"there is no file {path}",
            "expected a file of Python with a vertex function",
            "Check the path",
        )
    module = _run(path)
    made = vars(module).get(title)
    if not _is_model(made):
        own = [
            name
            for name, each in vars(module).items()
            if _is_model(each) and each.__module__ == module.__name__
        ]
        known = ", ".join(own) or "no subclass of vrt.VertexFunction or vrt.Model"
        raise UsageError.at(
            "model",
            f"no model '{title}' in {path}" if title else f"no class of {path} is named",
            f"it defines {known}",
            f"Name one: {path.name}:{own[-1] if own else 'CLASS'}.{nearest(title, own)}",
        )
    arguments = inspect.signature(made).parameters.values()
    plain = {
        a.name: a.default
        for a in arguments
        if isinstance(a.default, bool | str) or is_real(a.default)
    }
    return ModelSpec(title, task, format, OWN_TRAIN, module.__name__, title, plain)


def full_name(name: str) -> str:
    """Return the name of a model, the path of its file in full.

    Raises: UsageError, when it is the home of no user, or links lead in a circle.
    """
    found = OWN.fullmatch(name)
    if found is None:
        return name
    try:
        return f"{Path(found[1]).expanduser().resolve()}:{found[2] or ''}"
    except (RuntimeError, ValueError) as error:  # pathlib's answers; ValueError: a NUL
        raise UsageError.at(
            "model",
            f"{found[1]!r} ({error})",
            "expected a file of Python with a vertex function",
            "Check the path",
        ) from error


def _is_model(made: object) -> TypeGuard[type]:
    return isinstance(made, type) and issubclass(made, VertexFunction | Model)


def _run(path: Path) -> ModuleType:
    """Run a file as a module, once; it can import what lies beside it."""
    name = "vertexrt_own_" + hashlib.sha256(bytes(path)).hexdigest()[:16]
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    finder = _Neighbours(path.parent, {name})
    sys.meta_path.append(finder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.meta_path.remove(finder)
        del sys.modules[name]
        raise
    return module  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _Neighbours:
    """Find what lies beside a model's file, for that file and for what it has imported from there.

    Were the folder on `sys.path`, a library that looks for another one which is not installed
    would run a file of that name.

    Attributes:
        names: of these modules; those of packages are told by the first part.
    """

    folder: Path
    names: set[str]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is, as `importlib` asks for it."""
        frame: Any = sys._getframe(1)
        asking = "importlib"
        while frame is not None and asking == "importlib":
            frame = frame.f_back
            asking = frame.f_globals.get("__name__", "").partition(".")[0] if frame else ""
        if path is not None or asking not in self.names:
            return None
        found = PathFinder.find_spec(name, [str(self.folder)])
        if found is not None:
            self.names.add(name)
        return found
