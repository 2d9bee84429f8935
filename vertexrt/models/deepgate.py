"""Signal probabilities of a circuit of AND gates and inverters, read in both directions."""

from collections.abc import Sequence

import vertexrt as vrt
from vertexrt import nn
from vertexrt.models.dagnn import attend


class CircuitInput(vrt.VertexFunction):
    """An input of the circuit: all are alike, 1 half of the time."""

    def __init__(self, hidden: int) -> None:
        super().__init__(state={"h": hidden})
        self.start = vrt.Parameter((hidden,), init=vrt.init.normal(1.0))

    def forward(self) -> None:
        """Compute one input."""
        self.scatter(h=1.0 * self.start)


class Gate(vrt.VertexFunction):
    """A gate: a GRU of what it reads, with attention. `inputs` name the functions of that later."""

    def __init__(self, hidden: int) -> None:
        super().__init__(state={"h": hidden})
        self.start = vrt.Parameter((hidden,), init=vrt.init.normal(1.0))
        self.score = vrt.Parameter((hidden,), init=vrt.init.normal(0.1))
        self.cell = nn.GRUCell(hidden, hidden)

    def forward(self) -> None:
        """Compute one gate."""
        read = attend(self.score, self.gather_all("reads").h)
        self.scatter(h=self.cell(read, 1.0 * self.start))


class Reverse(vrt.VertexFunction):
    """A gate or input, seen from those that read it.

    Pulls `target` and pushes `output`: the probability that it is 1.
    """

    def __init__(self, own: Sequence[vrt.VertexFunction], hidden: int) -> None:
        super().__init__(state={"h": hidden}, inputs={"own": own})
        self.score = vrt.Parameter((hidden,), init=vrt.init.normal(0.1))
        self.cell = nn.GRUCell(hidden, hidden)
        self.inner, self.out = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, 1)

    def forward(self) -> None:
        """Compute one."""
        own = self.gather("own").h
        h = self.cell(attend(self.score, self.gather_all("readers").h), own)
        self.scatter(h=h)
        output = vrt.sigmoid(self.out(vrt.relu(self.inner(vrt.concat(own, h)))))
        target = self.pull("target", shape=(1,), dtype="float")
        self.push("output", output)
        self.push("loss", vrt.sum(vrt.abs(output - target)))


class DeepGate(vrt.Model):
    """DeepGate (Li et al., DAC 2022), one round: forward over the gates, then in reverse.

    Gates of a kind share weights: `and` and `not` are vertex types. The paper repeats the round.

    Args:
        hidden: elements.
    """

    def __init__(self, hidden: int) -> None:
        self.input = CircuitInput(hidden)
        self.conjunction, self.inverter = Gate(hidden), Gate(hidden)
        kinds = self.input, self.conjunction, self.inverter
        self.conjunction.inputs = self.inverter.inputs = {"reads": kinds}
        self.reverse = Reverse(kinds, hidden)
