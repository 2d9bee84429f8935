"""Examples of cells."""

import numpy as np
from given import batch

import vertexrt as vrt


#: vrt.nn.Cell
class Gate(vrt.nn.Cell):
    def __init__(self, size):
        self.linear = vrt.nn.Linear(size, size)

    def __call__(self, x, h):
        gate = vrt.sigmoid(self.linear(h))
        return gate * h + (1.0 - gate) * vrt.concat(x, x[:1])


#: vrt.nn.Linear, vrt.nn.Embedding, vrt.nn.LayerNorm
class Encoder(vrt.VertexFunction):
    def __init__(self):
        super().__init__(arity=2, state={"h": 4})
        self.embedding, self.norm = vrt.nn.Embedding(10, 3), vrt.nn.LayerNorm(4)
        self.out = vrt.nn.Linear(3, 4)

    def forward(self):
        h = self.norm(self.out(self.embedding(self.pull("word"))))
        self.scatter(h=h)
        self.push("h", h)


encoder = vrt.compile(Encoder(), device="reference")
assert encoder.parameters["out.weight"].shape == (4, 3)
assert abs(encoder(batch)["h"].sum()) < 1e-4  # layers are normalised


#: vrt.nn.RNNCell, vrt.nn.GRUCell
class Recurrent(vrt.VertexFunction):
    def __init__(self, cell):
        super().__init__(arity=1, state={"h": 4})
        self.cell = cell

    def forward(self):
        h = self.cell(self.pull("x", shape=(3,)), self.gather(0).h)
        self.scatter(h=h)
        self.push("h", h)


vectors = vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(3, {"x": np.ones((3, 3))})])
for cell in (vrt.nn.RNNCell(3, 4), vrt.nn.GRUCell(3, 4), Gate(4)):
    recurrent = vrt.compile(Recurrent(cell), device="reference")
    assert recurrent(vectors)["h"].shape == (3, 4)


#: vrt.nn.LSTMCell
class LSTM(vrt.VertexFunction):
    def __init__(self):
        super().__init__(arity=1, state={"h": 4, "c": 4})
        self.cell = vrt.nn.LSTMCell(3, 4, peephole=True)

    def forward(self):
        before = self.gather(0)
        h, c = self.cell(self.pull("x", shape=(3,)), (before.h, before.c))
        self.scatter(h=h, c=c)
        self.push("h", h)


lstm = vrt.compile(LSTM(), device="reference")
assert lstm(vectors)["h"].shape == (3, 4)


#: vrt.nn.SLSTMCell
class SLSTM(vrt.VertexFunction):
    def __init__(self):
        super().__init__(arity=1, state=dict.fromkeys("hcnm", 4))
        self.cell = vrt.nn.SLSTMCell(3, 4, heads=2)

    def forward(self):
        b = self.gather(0)
        h, c, n, m = self.cell(self.pull("x", shape=(3,)), (b.h, b.c, b.n, b.m))
        self.scatter(h=h, c=c, n=n, m=m)
        self.push("h", h)


slstm = vrt.compile(SLSTM(), device="reference")
assert slstm(vectors)["h"].shape == (3, 4)


#: vrt.nn.ChildSumTreeLSTMCell
class ChildSum(vrt.VertexFunction):
    def __init__(self):
        super().__init__(state={"h": 4, "c": 4})
        self.cell = vrt.nn.ChildSumTreeLSTMCell(3, 4)

    def forward(self):
        h, c = self.cell(self.pull("x", shape=(3,)), self.gather_all())
        self.scatter(h=h, c=c)
        self.push("h", h)


child_sum = vrt.compile(ChildSum(), device="reference")
assert child_sum(vectors)["h"].shape == (3, 4)


#: vrt.nn.NaryTreeLSTMCell
class Nary(vrt.VertexFunction):
    def __init__(self):
        super().__init__(arity=2, state={"h": 4, "c": 4})
        self.cell = vrt.nn.NaryTreeLSTMCell(3, 4, arity=2)

    def forward(self):
        kids = [self.gather(k) for k in range(2)]
        h, c = self.cell(self.pull("x", shape=(3,)), [(kid.h, kid.c) for kid in kids])
        self.scatter(h=h, c=c)
        self.push("h", h)


nary = vrt.compile(Nary(), device="reference")
assert nary(vectors)["h"].shape == (3, 4)


#: vrt.nn.MLP, vrt.nn.RMSNorm, vrt.nn.MultiHeadAttention, vrt.nn.zoneout
class Attending(vrt.VertexFunction):
    def __init__(self):
        super().__init__(state={"h": 4})
        self.embedding, self.attend = vrt.nn.Embedding(10, 4), vrt.nn.MultiHeadAttention(4, 2)
        self.norm, self.mlp = vrt.nn.RMSNorm(4), vrt.nn.MLP(4, 8, 4, activation=vrt.nn.gelu)

    def forward(self):
        x = self.embedding(self.pull("word"))
        h = self.norm(x + self.mlp(x))
        h = vrt.nn.zoneout(h + self.attend(h, self.gather_all().h), x, 0.1)
        self.scatter(h=h)
        self.push("h", h)


attending = vrt.compile(Attending(), device="reference")
assert attending.parameters["mlp.layers.0.weight"].shape == (8, 4)
assert attending.parameters["attend.in_proj_weight"].shape == (12, 4)
assert attending(batch)["h"].shape == (6, 4)


#: vrt.nn.ChainConv
class Convolved(vrt.VertexFunction):
    def __init__(self):
        self.conv = vrt.nn.ChainConv(2, 4, kernel_size=3)
        super().__init__(arity=1, state={"before": self.conv.window})

    def forward(self):
        y, window = self.conv(self.pull("x", 2), self.gather(0).before)
        self.scatter(before=window)
        self.push("y", y)


convolved = vrt.compile(Convolved(), device="reference")
chain = vrt.InputGraph.chain(5, {"x": np.ones((5, 2))})
y = convolved(vrt.GraphBatch.from_graphs([chain]))["y"]
assert np.allclose(y[2], y[3], atol=1e-6)  # both have three vertices
assert not np.allclose(y[1], y[2])
