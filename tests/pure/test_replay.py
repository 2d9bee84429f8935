"""What a replay hashes is the same twice, and another function or batch has other hashes."""

from tests.functions import GRU, NoGather
from tests.replay import replay
from tests.strategies import with_pulls


def test_a_replay_differs_where_something_was_made_otherwise() -> None:
    tree = [[], [], [0, 1]]
    first = replay(NoGather, [with_pulls([tree])])
    assert replay(NoGather, [with_pulls([tree])]) == first
    larger = replay(NoGather, [with_pulls([tree, tree])])
    assert all(larger[kind] != first[kind] for kind in ("launches", "scripts", "memory"))
    other = replay(GRU, [with_pulls([tree])])
    assert all(other[kind] != first[kind] for kind in ("llvm", "cuda"))
