"""Runs draw no picture: that takes longer than to train so few trees."""

from collections.abc import Iterator

import pytest

from vertexrt.cli import curve


@pytest.fixture(autouse=True)
def picture() -> Iterator[None]:
    """Keep the place of the picture, which commands in processes of their own draw as ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curve, "_picture", lambda records, names, title: b"no picture")
        yield
