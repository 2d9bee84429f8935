"""Types for the part of numba that benchmarks use: it leaves its decorators without."""

from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

def njit(*, cache: bool = False) -> Callable[[_F], _F]: ...
