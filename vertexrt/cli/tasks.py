"""What a model may be trained for: a row for each task, with what it reads and how it is judged.

Nothing heavy is imported: the command line takes the names from here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """What the command line needs to know of a task. Every task has the push `loss`.

    Attributes:
        text: what is learned, in a few words.
        measures: names of `measures.MEASURES`; the first that the dev split has a value of decides
            over the best checkpoint, the loss where there is none.
        label: the pull that says what is right.
        answer: the push that says what the model makes of it, with an axis for each class or
            number; "" where none is looked at.
    """

    name: str
    text: str
    measures: tuple[str, ...] = ()
    label: str = ""
    answer: str = ""

    @property
    def pushes(self) -> tuple[str, ...]:
        """Return the pushes that an evaluation asks for."""
        return ("loss", self.answer) if self.answer else ("loss",)


TASKS = {
    row.name: row
    for row in (
        Task(
            "classification",
            "a class for graphs, by their roots, or for any vertices",
            ("root_accuracy", "vertex_accuracy"),
            "label",
            "logits",
        ),
        Task("tagging", "a tag for each word", ("entity_f1", "accuracy"), "label", "logits"),
        Task(
            "regression",
            "numbers for vertices",
            ("mean_squared_error", "mean_absolute_error"),
            "target",
            "output",
        ),
        # Its logits, vertices x words, are never asked for.
        Task("language-model", "the next word", ("perplexity",), "label"),
        Task(
            "translation",
            "the next word of a translation",
            ("accuracy", "perplexity"),
            "label",
            "logits",
        ),
        Task("loss", "whatever makes the push `loss` small"),
    )
}
