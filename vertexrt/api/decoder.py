"""Generate words one after another: a network of one step whose states are fed back to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.api.along import CarriedState
from vertexrt.api.arguments import check_batch, check_draw, check_known, check_mapping, check_option
from vertexrt.api.network import Network
from vertexrt.checks import is_real, is_whole
from vertexrt.errors import GraphError, PullError
from vertexrt.graph import GraphBatch, Rows
from vertexrt.graph.owned import INT32, read_array
from vertexrt.graph.pulls import parts_of_pull

Array = np.ndarray[Any, Any]
SLOT = "slot"  # the pull
MOST_ROWS = 2**31  # hypotheses of a graph, and words of one


class Generated(NamedTuple):
    """What a `Decoder` has made of a graph.

    Attributes:
        words: numbers in order, the one that ends included; of a tree from the top down, a vertex
            before its children, and these from the first.
        parents: of each word the place of the word that it comes after: the one before, or in a
            tree the parent's; -1 for the first.
        score: log probability / (number of words) ** length_penalty.
        missing: words that are to come, at least; 0, unless it was cut off at `max_length`.
    """

    words: tuple[int, ...]
    parents: tuple[int, ...]
    score: float
    missing: int


class _Step(NamedTuple):
    """A word that is to be made.

    Attributes:
        pushed: by the step of its parent; row: which of it.
        word: the parent; parent: its place among the words.
        slot: number of the child.
    """

    pushed: Mapping[str, Any]
    row: int
    word: int
    parent: int
    slot: int


_Hypothesis = tuple[Generated, list[_Step]]  # with the steps that are to come


class Decoder:
    """Generates sequences or trees, a word a step: greedy, drawn, or by beam search.

    A step is a graph with one vertex that pulls `word`, the word before, and one root, which pushes
    `logits`, the scores of the next word. Its states are what the network pulls under the name of
    a push (see `CarriedState`): each vertex pulls in a step what it pushed in the step before. They
    stay on the device. Whatever else the graph has, such as vertices of a source to attend to, is
    the same in each step.

    In a tree a word may have several children, each of which is a step that begins with the states
    and the word of its parent, and pulls `slot`, the number of the child, where the batch has it.

    Parameters are those of the moment. A decoder holds the memory of a plan (`Network.plan`).

    Args:
        net: a compiled network.
        batch: a first step for each sequence or tree: `word` is what it begins with, states are
            those to begin with, zeros where the batch has none. Both are arrays of the host.
        num_beams: hypotheses that beam search keeps for each graph; 1 is greedy.
        word: name of the pull.
    Attributes:
        pulls: what a call may give, shapes by name: `word`, `slot` and states of rows graph by
            graph, `num_beams` of each; other pulls as the batch has them.
    Raises: GraphError, when a graph has not one vertex with a word and one root, or graphs differ
        in their number of states; UsageError, when `batch` is none or the network lacks a push.
    Source: beam search as in Sutskever et al. 2014; top-k of Fan et al. 2018, top-p of Holtzman et
        al. 2020; trees as in Dong and Lapata 2016.
    """

    def __init__(
        self, net: Network, batch: GraphBatch, *, num_beams: int = 1, word: str = "word"
    ) -> None:
        carried = CarriedState(net)
        check_batch("Decoder", batch)
        check_known(("logits",), net.pushes, net.program.name)
        check_option("Decoder", "word", word, isinstance(word, str), "the name of a pull")
        fits = is_whole(num_beams) and 1 <= num_beams < MOST_ROWS
        check_option("Decoder", "num_beams", num_beams, fits, "a whole number, 1 or more")
        rows = batch.num_graphs * num_beams
        batch = batch.take(np.arange(rows) // num_beams)
        given, places = {**carried.put(batch).pulls, **batch.pulls}, carried.ends(batch)
        absent = np.full(batch.num_vertices, -1, INT32)
        table, own = parts_of_pull(given.get(word, absent))
        pulling = np.flatnonzero(np.append(table, INT32.type(-1))[own] >= 0)
        for what, vertices, wanted in (
            (f"vertices that pull {word!r}", pulling, 1),
            ("roots", batch.roots, 1),
            ("vertices with states", places, len(places) // rows),
        ):
            counts = np.bincount(batch.graph_of[vertices], minlength=rows)
            if (counts != wanted).any():
                number = int(np.argmax(counts != wanted))
                raise GraphError.at(
                    "Decoder",
                    f"graph {number // num_beams} has {counts[number]} {what}",
                    f"{wanted} in each graph, which is one step",
                    "build a graph of the vertices of one step for each sequence",
                )
        self._starts: dict[str, Any] = {}
        numbers, states = {word: pulling, SLOT: pulling}, dict.fromkeys(carried.shapes, places)
        for name, vertices in (numbers | states).items():
            if name in given:
                table, own = parts_of_pull(given[name])
                start = self._starts[name] = table[own[vertices]]
                start[own[vertices] < 0] = 0
                index = absent.copy()
                index[vertices] = np.arange(len(vertices))
                given[name] = Rows(start, index)
        same = np.array_equal(places, batch.roots)
        self._plan = net.plan(
            batch.with_pulls({name: given[name] for name in self._starts}),
            outputs=("logits", *states),
            vertices=places if same else np.concatenate([batch.roots, places]),
            arrays="device",
        )
        self.pulls = self._plan.pulls
        self._word, self._states, self._from = word, tuple(states), 0 if same else rows
        self._order, self._beams = list(range(rows)), num_beams

    def __call__(
        self,
        pulls: Mapping[str, Any] | None = None,
        *,
        max_length: int,
        end: int | None = None,
        children: npt.ArrayLike | None = None,
        length_penalty: float = 1.0,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> list[list[Generated]]:
        """Generate.

        Args:
            pulls: other values than the batch had, by name, in the shapes of `pulls`.
            max_length: words at most.
            end: the word that ends a sequence; None for none.
            children: whole numbers [words], of each word the number of its children in a tree; 1 by
                default, which makes a sequence.
            length_penalty: hypotheses are compared by log probability / length ** length_penalty.
            temperature: 0 takes the most probable word. Above, words are drawn from
                softmax(logits / temperature), without beams.
            top_k: draw from the k most probable words; 0 from all.
            top_p: draw from the fewest most probable words whose probabilities add up to this.
            seed: of what is drawn.
        Returns: for each graph what was found, the best first: one, or up to `num_beams`. A search
            ends when as many are complete; those that are not come last.
        Raises: UsageError, for a value that an argument does not take; PullError, as a plan does.
        """
        beams, rows = self._beams, len(self._order)
        whole = is_whole(max_length) and 1 <= max_length < MOST_ROWS
        power = is_real(length_penalty) and abs(length_penalty) < 100
        draws = is_real(temperature) and temperature > 0
        warm = is_real(temperature) and (temperature == 0 or (draws and beams == 1))
        for option, value, fits, expected in (
            ("max_length", max_length, whole, "a whole number, 1 or more"),
            ("length_penalty", length_penalty, power, "a number of at most two digits"),
            ("temperature", temperature, warm, "0, or above it without beams"),
            ("top_k", top_k, is_whole(top_k) and top_k >= 0, "a whole number, 0 for all words"),
            ("top_p", top_p, is_real(top_p) and 0 < top_p <= 1, "a number above 0, 1 at most"),
        ):
            check_option("decoder", option, value, fits, expected)
        check_draw("decoder", seed)
        more = {} if pulls is None else pulls
        check_mapping("decoder", more, PullError)
        given = starts = {**self._starts, **more}
        begin: _Hypothesis = Generated((), (), 0.0, 1), [_Step({}, 0, 0, -1, 0)]
        live = [[begin] for _ in range(rows // beams)]
        done: list[list[_Hypothesis]] = [[] for _ in live]
        counts, rng = np.zeros(0, np.int64), np.random.default_rng(seed) if draws else None
        for length in range(max_length):
            pushed = self._plan(given)
            logits = pushed["logits"][:rows]
            logits = logits if isinstance(logits, np.ndarray) else logits.get()  # of CuPy
            if length == 0:
                counts = _counts(children, end, logits.shape[1])
            scores = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
            scores -= np.log(np.add.reduce(np.exp(scores), axis=1, keepdims=True))
            if beams == 1:
                judged = _noisy(scores / temperature, top_k, top_p, rng) if rng else logits
                best = judged.argmax(axis=1)[:, None].tolist()
            else:
                before = [[one.score for one, _ in each] for each in live]
                filled = [each + [-np.inf] * (beams - len(each)) for each in before]
                best = _largest(scores + np.reshape(filled, (rows, 1)), beams)
            steps = [_Step(pushed, row, 0, 0, 0) for row in self._order]
            for k, several in enumerate(live):
                grown: list[_Hypothesis] = []
                for at in best[k][: beams - len(done[k])]:
                    number, word = divmod(at, len(counts))
                    if number < len(several):  # all begin with one
                        (words, parents, score, _), (now, *rest) = several[number]
                        row, place, slots = k * beams + number, len(words), counts.item(word)
                        todo = [_Step(pushed, row, word, place, slot) for slot in range(slots)]
                        todo += rest
                        score += scores.item(row, word)
                        one = Generated((*words, word), (*parents, now.parent), score, len(todo))
                        (grown if todo else done[k]).append((one, todo))
                live[k] = grown
                for row, (_, todo) in enumerate(grown, k * beams):
                    steps[row] = todo[0]
            if not any(live):
                break
            given = {**starts, **self._pulls_of(steps)}
        found = []
        for each in map(list.__add__, done, live):
            made = [
                one._replace(score=one.score / len(one.words) ** length_penalty) for one, _ in each
            ]
            found.append(sorted(made, key=lambda one: (one.missing > 0, -one.score)))
        return found

    def _pulls_of(self, steps: Sequence[_Step]) -> dict[str, Any]:
        """Return what steps pull: words, slots, and the states that their parents pushed."""
        rows = len(steps)
        pulls: dict[str, Any] = {self._word: np.array([step.word for step in steps], INT32)}
        if SLOT in self._starts:
            pulls[SLOT] = np.array([step.slot for step in steps], INT32)
        blocks = {id(step.pushed): step.pushed for step in steps}
        first = {key: number * rows for number, key in enumerate(blocks)}
        index = [first[id(step.pushed)] + step.row for step in steps]
        for name in self._states:
            tables = [block[name][self._from :] for block in blocks.values()]
            pulls[name] = tables[0]
            if index != self._order:
                joined = np.concatenate(tables).reshape(rows * len(tables), -1)
                pulls[name] = joined[index].reshape(tables[0].shape)
        return pulls


def _counts(children: npt.ArrayLike | None, end: int | None, words: int) -> Array:
    """Return how many children each word has. Raises: UsageError."""
    given = np.ones(words, np.int64) if children is None else read_array(children)
    fits = not isinstance(given, str) and given.shape == (words,) and given.dtype.kind in "iu"
    fits = fits and np.min(given) >= 0
    check_option("decoder", "children", children, fits, f"whole numbers [{words}], 0 or more")
    counts = np.array(given)
    if end is not None:
        fits = is_whole(end) and 0 <= end < words
        check_option("decoder", "end", end, fits, f"a word, 0 to {words - 1}")
        counts[end] = 0
    return counts


def _noisy(scores: Array, top_k: int, top_p: float, rng: np.random.Generator) -> Array:
    """Return scores whose largest is a draw from their softmax, words that are left out at -inf.

    Source: the Gumbel-max trick (Gumbel 1954; Maddison et al. 2014).
    """
    falling = -np.sort(-scores, axis=1)
    share = np.exp(falling - falling[:, :1])
    share[:, top_k or share.shape[1] :] = 0.0
    before = np.cumsum(share, axis=1) - share
    kept = (share > 0.0) & (before < top_p * share.sum(axis=1, keepdims=True))
    least = np.where(kept, falling, np.inf).min(axis=1, keepdims=True)
    return np.where(scores < least, -np.inf, scores) + rng.gumbel(size=scores.shape)


def _largest(judged: Array, beams: int) -> list[list[int]]:
    """Return which of the numbers of `beams` rows at a time are the largest, falling."""
    flat = -judged.reshape(len(judged) // beams, -1)
    found = np.argpartition(flat, beams - 1, axis=1)[:, :beams]
    order = np.argsort(np.take_along_axis(flat, found, axis=1), axis=1)
    best: list[list[int]] = np.take_along_axis(found, order, axis=1).tolist()
    return best
