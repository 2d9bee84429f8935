"""Runs draw no picture: that takes longer than to train so few trees."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure


@pytest.fixture(autouse=True)
def picture() -> Iterator[None]:
    """Keep the place of the picture, which commands in processes of their own draw as ever."""

    def write(figure: Figure, to: Any, **options: Any) -> None:
        (to.write if hasattr(to, "write") else Path(to).write_bytes)(b"no picture")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", write)
        yield
