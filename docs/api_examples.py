"""The examples of docs/api.md: after `#:` the names that one shows. A test runs the file."""

#: given
import tempfile
from pathlib import Path
from types import SimpleNamespace

import networkx
import numpy as np

import vertexrt as vrt


class Tree(vrt.VertexFunction):
    """A recursive network over binary trees that classifies every vertex."""

    def __init__(self):
        super().__init__(arity=2, state={"h": 4})
        self.table, self.u = vrt.Parameter((10, 4)), vrt.Parameter((4, 4))
        self.v = vrt.Parameter((2, 4))

    def forward(self):
        below = self.gather(0).h + self.gather(1).h
        h = vrt.tanh(vrt.embed(self.table, self.pull("word")) + self.u @ below)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.cross_entropy(self.v @ h, self.pull("label")))


class Probe(vrt.VertexFunction):
    """Pushes what `compute(f, x, y)` gives, two elements of each vertex being x and two y."""

    def __init__(self, compute):
        super().__init__(arity=2, state={"h": 2})
        self.compute = compute
        self.w = vrt.Parameter((2, 2), init=vrt.init.constant([[1.0, 2.0], [3.0, 4.0]]))

    def forward(self):
        x, y = self.pull("x", shape=(2,)), self.pull("y", shape=(2,))
        self.push("out", self.compute(self, x, y))
        self.scatter(h=x * 1.0)


def at_root(compute):
    """Evaluate `compute(f, x, y)` at the root of a tree: x = [-1, 2], y = [3, 0.5].

    Its two children have the state h = [1, 2] and [3, 4]; their edges weigh 0.5 and 2.
    """
    pulls = {"x": [[1.0, 2.0], [3.0, 4.0], [-1.0, 2.0]], "y": [[0.0, 0.0], [0.0, 0.0], [3.0, 0.5]]}
    pulls = {name: np.array(rows) for name, rows in pulls.items()}
    pulls["k"] = np.array([-1, -1, 1])  # an integer, which leaves do not have
    weights = {"weight": np.array([0.5, 2.0])}
    graph = vrt.InputGraph.from_children([[], [], [0, 1]], pulls, weights)
    net = vrt.compile(Probe(compute), device="reference", dtype="float64")
    return net.forward(vrt.GraphBatch.from_graphs([graph]))["out"][2].round(3).tolist()


graph = vrt.InputGraph.from_children([[], [], [0, 1]], {"word": [2, 3, -1], "label": [0, 1, 1]})
batch = vrt.GraphBatch.from_graphs([graph, graph])
net = vrt.compile(Tree(), device="reference")
optimizer = vrt.SGD(lr=0.1)
folder = Path(tempfile.mkdtemp())


#: vrt.VertexFunction, vrt.VertexFunction.forward
class Total(vrt.VertexFunction):
    def __init__(self):
        super().__init__(arity=2, state={"sum": 1})

    def forward(self):
        value = self.pull("value", shape=(1,)) + self.gather(0).sum + self.gather(1).sum
        self.scatter(sum=value)
        self.push("sum", value)


values = {"value": np.array([[1.0], [2.0], [3.0]])}
tree = vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children([[], [], [0, 1]], values)])
assert vrt.compile(Total(), device="reference").forward(tree)["sum"][2] == 6.0

#: vrt.VertexFunction.gather
assert at_root(lambda f, x, y: f.gather(1).h) == [3.0, 4.0]
#: vrt.VertexFunction.gather_all
assert at_root(lambda f, x, y: vrt.sum(f.gather_all().h)) == [4.0, 6.0]


#: vrt.VertexFunction.scatter
class Depth(vrt.VertexFunction):
    def __init__(self):
        super().__init__(state={"depth": 1})

    def forward(self):
        depth = vrt.max(self.gather_all().depth) + 1.0
        self.scatter(depth=depth)  # to the parents
        self.push("depth", depth)


depths = vrt.compile(Depth(), device="reference").forward(batch)["depth"]
assert depths[:3].tolist() == [[1.0], [1.0], [2.0]]

#: vrt.VertexFunction.pull
assert at_root(lambda f, x, y: f.pull("x", shape=(2,))) == [-1.0, 2.0]
assert at_root(lambda f, x, y: f.pull("k", dtype="int") + 1) == 2.0
#: vrt.VertexFunction.edge
assert at_root(lambda f, x, y: vrt.sum(f.edge("weight") * f.gather_all().h)) == [6.5, 9.0]
#: vrt.VertexFunction.present
assert at_root(lambda f, x, y: f.present(0)) == 1.0
#: vrt.VertexFunction.push
assert at_root(lambda f, x, y: f.push("twice", 2.0 * x)) == [-2.0, 4.0]
#: vrt.VertexFunction.parameters
assert list(Tree().parameters()) == ["table", "u", "v"]
#: vrt.VertexFunction.trace
program = Tree().trace()


#: vrt.Model, vrt.Model.functions, vrt.Model.parameters, vrt.Model.trace
class Word(vrt.VertexFunction):
    def __init__(self):
        super().__init__(state={"h": 4})
        self.table = vrt.Parameter((10, 4))

    def forward(self):
        self.scatter(h=vrt.embed(self.table, self.pull("word")))


class Sentence(vrt.VertexFunction):
    def __init__(self, word):
        super().__init__(state={"h": 4}, inputs={"words": word})

    def forward(self):
        mean = vrt.mean(self.gather_all("words").h)
        self.scatter(h=mean)
        self.push("mean", mean)


class Bag(vrt.Model):
    def __init__(self):
        super().__init__()
        self.word = Word()
        self.sentence = Sentence(self.word)


assert list(Bag().functions()) == ["word", "sentence"]
assert list(Bag().parameters()) == ["word.table"]
program = Bag().trace()
#: vrt.Parameter
scale = vrt.Parameter(4, init=vrt.init.ones, trainable=False)
#: vrt.compile
net = vrt.compile(Tree(), device="reference", dtype="float64", seed=3)
#: vrt.Passes
plain = vrt.compile(Tree(), device="reference", passes=vrt.Passes(fuse=False, merge=False))
#: vrt.Network, vrt.Network.step
losses = [net.step(batch, optimizer) for _ in range(5)]
assert losses[-1] < losses[0]
#: vrt.Network.executor
assert net.executor is not None
#: vrt.Network.program
assert "tanh" in str(net.program)
#: vrt.Network.device
assert net.device == "reference"
#: vrt.Network.pushes
assert net.pushes == ("h", "loss")
#: vrt.Network.outputs
net.step(batch, optimizer, outputs=["h"])
assert net.outputs["h"].shape == (6, 4)
#: vrt.Network.parameters
net.parameters["table"] = np.full((10, 4), 0.1)  # pretrained embeddings, say
#: vrt.Network.set_parameters
differences = net.set_parameters({"u": np.eye(4)}, strict=False)
#: vrt.Network.warm
net.warm(batch, optimizer)
#: vrt.Network.sync
last_loss = net.sync()
#: vrt.Network.forward
assert net.forward(batch, outputs=["h"])["h"].shape == (6, 4)
#: vrt.Network.submit
assert net.submit(batch, ["h"]).result()["h"].shape == (6, 4)
#: vrt.Network.backward, vrt.Gradients
outputs = net.forward(batch, train=True)
gradients = net.backward({"h": np.ones((6, 4))}, of=outputs)
assert gradients.parameters["u"].shape == (4, 4)
#: vrt.Network.gradients, vrt.Network.zero_grad
net.zero_grad()
for _ in range(2):  # the mean over two batches
    net.forward(batch, train=True)
    net.backward(scale=0.5)
assert net.gradients["v"].shape == (2, 4)
#: vrt.Network.random_state, vrt.Network.set_random_state
state = net.random_state()
net.set_random_state(state)
#: vrt.Network.explain
assert "tanh" in net.explain()
#: vrt.Network.explain_batch
print(net.explain_batch(batch))
#: vrt.Network.trace
persistent = vrt.compile(Tree(), device="reference", engine="persistent")
with persistent.trace() as timeline:
    persistent.step(batch, vrt.SGD(lr=0.1))
#: vrt.InputGraph
root_over_two = vrt.InputGraph(child_ptr=[0, 0, 0, 2], child=[0, 1])
#: vrt.InputGraph.num_vertices, vrt.InputGraph.num_edges
assert (graph.num_vertices, graph.num_edges) == (3, 2)
#: vrt.InputGraph.children
assert graph.children(2) == [0, 1]
#: vrt.InputGraph.from_children
right_only = vrt.InputGraph.from_children([[], [-1, 0]], {"word": [4, -1]})
#: vrt.InputGraph.from_edges
diamond = vrt.InputGraph.from_edges(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
#: vrt.InputGraph.from_types
typed = vrt.InputGraph.from_types(
    {"word": 2, "sentence": 1},
    {("word", "words", "sentence"): [(0, 0), (1, 0)]},
    {"word": {"word": [5, 6]}},
)
bag = vrt.compile(Bag(), device="reference").forward(vrt.GraphBatch.from_graphs([typed]))
#: vrt.InputGraph.chain
chain = vrt.InputGraph.chain(3, {"word": [7, 8, 9]})
#: vrt.InputGraph.complete_tree
assert vrt.InputGraph.complete_tree(4).num_vertices == 7
#: vrt.InputGraph.from_brackets
assert vrt.InputGraph.from_brackets("(3 (2 good) (1 film))").graph.num_vertices == 3
#: vrt.InputGraph.from_networkx
dag = networkx.DiGraph([("leaf", "root")])
assert vrt.InputGraph.from_networkx(dag).num_edges == 1
#: vrt.InputGraph.to_networkx
assert list(graph.to_networkx().predecessors(2)) == [0, 1]
#: vrt.GraphBatch, vrt.GraphBatch.from_graphs
forest = vrt.GraphBatch.from_graphs([graph, graph])
#: vrt.GraphBatch.concat
assert vrt.GraphBatch.concat([batch, batch]).num_graphs == 4
#: vrt.GraphBatch.from_arrays
small = vrt.GraphBatch.from_arrays([0, 2], [0, 0, 1], [0], {"word": np.array([1, 2])})
#: vrt.GraphBatch.num_graphs, vrt.GraphBatch.num_vertices, vrt.GraphBatch.num_edges
assert (batch.num_graphs, batch.num_vertices, batch.num_edges) == (2, 6, 4)
#: vrt.GraphBatch.graph_of
assert batch.graph_of.tolist() == [0, 0, 0, 1, 1, 1]
#: vrt.GraphBatch.roots
assert batch.roots.tolist() == [2, 5]
#: vrt.GraphBatch.sizes
assert batch.sizes().tolist() == [3, 3]
#: vrt.GraphBatch.take
assert batch.take([1]).num_graphs == 1
#: vrt.GraphBatch.of_type
assert vrt.GraphBatch.from_graphs([typed]).of_type("sentence").tolist() == [2]
#: vrt.Pulled
image = vrt.Pulled(np.ones((2, 5)), np.array([1, -1, 0], dtype=np.int32))
with_images = vrt.InputGraph.chain(3, {"image": image})


#: vrt.Optimizer, vrt.Optimizer.update
class SignDescent(vrt.Optimizer):
    """A rule of one's own, on the host."""

    def update(self, store):
        for name in store.trained:
            store.value(name)[...] -= self.lr * np.sign(store.gradient(name))


before = net.parameters["u"].copy()
net.step(batch, SignDescent(lr=0.01))
assert np.allclose(np.abs(net.parameters["u"] - before), 0.01)

#: vrt.Optimizer.moment_names
assert vrt.Adam(lr=0.01).moment_names == ("m", "v")
#: vrt.Optimizer.lr
optimizer.lr = 0.05
#: vrt.Optimizer.groups
optimizer.groups = {"table": {"frozen": True}}
optimizer.groups = {}
#: vrt.Optimizer.step
net.forward(batch, train=True)
net.backward()
optimizer.step(net)
#: vrt.Optimizer.state, vrt.Optimizer.load_state
again = vrt.SGD(lr=0.05)
again.load_state(optimizer.state)
#: vrt.Optimizer.describe
assert optimizer.describe()["lr"] == 0.05
#: vrt.SGD
loss = vrt.compile(Tree(), device="reference").step(batch, vrt.SGD(lr=0.1, momentum=0.9))
#: vrt.Adagrad
loss = vrt.compile(Tree(), device="reference").step(batch, vrt.Adagrad(lr=0.05))
#: vrt.Adam
loss = vrt.compile(Tree(), device="reference").step(batch, vrt.Adam(lr=0.01, clip_norm=1.0))
#: vrt.AdamW
groups = {"table": {"weight_decay": 0.0}}
loss = vrt.compile(Tree(), device="reference").step(batch, vrt.AdamW(lr=0.01, groups=groups))
#: vrt.RMSprop
loss = vrt.compile(Tree(), device="reference").step(batch, vrt.RMSprop(lr=0.01))
#: vrt.Lion
loss = vrt.compile(Tree(), device="reference").step(batch, vrt.Lion(lr=0.001))
#: vrt.ExponentialMovingAverage, vrt.ExponentialMovingAverage.update
average = vrt.ExponentialMovingAverage(net, decay=0.99)
net.step(batch, optimizer)
average.update()
#: vrt.ExponentialMovingAverage.in_place
with average.in_place():
    averaged = net.forward(batch)
#: vrt.ExponentialMovingAverage.set_parameters
average.set_parameters(net.parameters)


#: vrt.CarriedState, vrt.CarriedState.put, vrt.CarriedState.keep, vrt.CarriedState.restart
class Count(vrt.VertexFunction):
    def __init__(self):
        super().__init__(arity=1, state={"n": 1})

    def forward(self):
        n = self.pull("n", shape=(1,)) + self.gather(0).n + 1.0
        self.scatter(n=n)
        self.push("n", n)


counter = vrt.compile(Count(), device="reference")
carried = vrt.CarriedState(counter)
piece = vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(3)])
for end in (3.0, 6.0):
    pushed = counter.forward(carried.put(piece))
    carried.keep(piece, pushed)
    assert pushed["n"][-1] == end
carried.restart()
#: vrt.save_checkpoint
vrt.save_checkpoint(folder / "net.safetensors", net, optimizer, meta={"epoch": 3})
#: vrt.load_checkpoint, vrt.Checkpoint
checkpoint = vrt.load_checkpoint(folder / "net.safetensors")
net.set_parameters(checkpoint.parameters)
optimizer.load_state(checkpoint.optimizer_state)
assert checkpoint.meta == {"epoch": 3}
#: vrt.VertexrtError
try:
    vrt.InputGraph.from_children([[0]])
except vrt.VertexrtError as error:
    print(error)  # names the vertices of the cycle
#: vrt.__version__
print(vrt.__version__)
#: vrt.abs
assert at_root(lambda f, x, y: vrt.abs(x)) == [1.0, 2.0]
#: vrt.clip
assert at_root(lambda f, x, y: vrt.clip(x, 0.0, 1.0)) == [0.0, 1.0]
#: vrt.elu
assert at_root(lambda f, x, y: vrt.elu(x)) == [-0.632, 2.0]
#: vrt.exp
assert at_root(lambda f, x, y: vrt.exp(x)) == [0.368, 7.389]
#: vrt.floor
assert at_root(lambda f, x, y: vrt.floor(y)) == [3.0, 0.0]
#: vrt.gelu
assert at_root(lambda f, x, y: vrt.gelu(x)) == [-0.159, 1.955]
#: vrt.leaky_relu
assert at_root(lambda f, x, y: vrt.leaky_relu(x, 0.1)) == [-0.1, 2.0]
#: vrt.log
assert at_root(lambda f, x, y: vrt.log(y + 1.0)) == [1.386, 0.405]
#: vrt.maximum
assert at_root(lambda f, x, y: vrt.maximum(x, y)) == [3.0, 2.0]
#: vrt.minimum
assert at_root(lambda f, x, y: vrt.minimum(x, y)) == [-1.0, 0.5]
#: vrt.relu
assert at_root(lambda f, x, y: vrt.relu(x)) == [0.0, 2.0]
#: vrt.sigmoid
assert at_root(lambda f, x, y: vrt.sigmoid(x)) == [0.269, 0.881]
#: vrt.silu
assert at_root(lambda f, x, y: vrt.silu(x)) == [-0.269, 1.762]
#: vrt.softplus
assert at_root(lambda f, x, y: vrt.softplus(x)) == [0.313, 2.127]
#: vrt.sqrt
assert at_root(lambda f, x, y: vrt.sqrt(y + 1.0)) == [2.0, 1.225]
#: vrt.stop_gradient
assert at_root(lambda f, x, y: vrt.stop_gradient(x)) == [-1.0, 2.0]
#: vrt.straight_through
assert at_root(lambda f, x, y: vrt.straight_through(x, x > 0.5)) == [0.0, 1.0]
#: vrt.tanh
assert at_root(lambda f, x, y: vrt.tanh(x)) == [-0.762, 0.964]
#: vrt.where
assert at_root(lambda f, x, y: vrt.where(x > 0.0, x, y)) == [3.0, 2.0]
#: vrt.argmax
assert at_root(lambda f, x, y: vrt.argmax(x)) == 1.0


#: vrt.block_diagonal
class Blocks(vrt.VertexFunction):
    def __init__(self):
        super().__init__(arity=1, state={"h": 6})
        self.u = vrt.Parameter((2, 3, 4))

    def forward(self):
        product = vrt.block_diagonal(self.u, self.pull("x", shape=(8,)))
        self.scatter(h=product)
        self.push("product", product)


blocks = vrt.compile(Blocks(), device="reference")
x = np.random.default_rng(0).standard_normal(8)
pushed = blocks.forward(vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(1, {"x": x[None]})]))
first_half = blocks.parameters["u"][0] @ x[:4]
assert np.allclose(pushed["product"][0, :3], first_half, atol=1e-5)

#: vrt.concat
assert at_root(lambda f, x, y: vrt.concat(x, y)) == [-1.0, 2.0, 3.0, 0.5]
#: vrt.dot
assert at_root(lambda f, x, y: vrt.dot(x, y)) == -2.0
#: vrt.embed
assert at_root(lambda f, x, y: vrt.embed(f.w, f.pull("k"))) == [3.0, 4.0]
#: vrt.full
assert at_root(lambda f, x, y: vrt.full(2, 0.5)) == [0.5, 0.5]
#: vrt.zeros
assert at_root(lambda f, x, y: vrt.zeros(2)) == [0.0, 0.0]
#: vrt.ones
assert at_root(lambda f, x, y: vrt.ones(2)) == [1.0, 1.0]
#: vrt.sum
assert at_root(lambda f, x, y: vrt.sum(x)) == 1.0
assert at_root(lambda f, x, y: vrt.sum(f.gather_all().h, over="children")) == [4.0, 6.0]
#: vrt.max
assert at_root(lambda f, x, y: vrt.max(f.gather_all().h)) == [3.0, 4.0]
#: vrt.mean
assert at_root(lambda f, x, y: vrt.mean(f.gather_all().h)) == [2.0, 3.0]


#: vrt.softmax
def attention(f, x, y):
    kids = f.gather_all()
    score = vrt.sum(kids.h * y, over="elements")  # 4 and 11
    return vrt.sum(vrt.softmax(score, over="children") * kids.h)


assert at_root(attention) == [2.998, 3.998]
#: vrt.log_softmax
assert at_root(lambda f, x, y: vrt.log_softmax(x)) == [-3.049, -0.049]
#: vrt.logsumexp
assert at_root(lambda f, x, y: vrt.logsumexp(f.gather_all().h, over="children")) == [3.127, 4.127]
#: vrt.split
assert at_root(lambda f, x, y: vrt.split(vrt.concat(x, y), 2)[1]) == [3.0, 0.5]
#: vrt.stack
assert at_root(lambda f, x, y: vrt.stack(x[1], y[1])) == [2.0, 0.5]
#: vrt.dropout
assert at_root(lambda f, x, y: vrt.dropout(x, 0.5)) == [-1.0, 2.0]  # drops in training only
#: vrt.uniform
assert all(1.0 <= number < 2.0 for number in at_root(lambda f, x, y: vrt.uniform(2, 1.0, 2.0)))
#: vrt.normal
sample = at_root(lambda f, x, y: vrt.normal(2, x, vrt.exp(y)))
#: vrt.cross_entropy
assert at_root(lambda f, x, y: vrt.cross_entropy(x, f.pull("k"))) == 0.049
#: vrt.multi_margin_loss
assert at_root(lambda f, x, y: vrt.multi_margin_loss(y, f.pull("k"))) == 1.75
#: vrt.squared_error
assert at_root(lambda f, x, y: vrt.squared_error(x, y)) == 18.25
#: vrt.binary_cross_entropy_with_logits
assert at_root(lambda f, x, y: vrt.binary_cross_entropy_with_logits(x, 1.0)) == 1.44
#: vrt.hinge_loss
assert at_root(lambda f, x, y: vrt.hinge_loss(x, 1.0)) == 2.0


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
assert abs(encoder.forward(batch)["h"].sum()) < 1e-4  # layers are normalised


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
    assert recurrent.forward(vectors)["h"].shape == (3, 4)


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
assert lstm.forward(vectors)["h"].shape == (3, 4)


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
assert slstm.forward(vectors)["h"].shape == (3, 4)


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
assert child_sum.forward(vectors)["h"].shape == (3, 4)


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
assert nary.forward(vectors)["h"].shape == (3, 4)
#: vrt.data.from_records, vrt.data.Examples
train = vrt.data.from_records([{"chain": 2, "pulls": {"word": ["a", "b"], "x": [0.5, None]}}])
assert train.vocabularies["word"].words == ("<unk>", "a", "b")
assert train.batch.num_graphs == 1
#: vrt.data.real_pulls
assert vrt.data.real_pulls(train.batch) == ["x"]
#: vrt.data.write_jsonl
vrt.data.write_jsonl(folder / "train.jsonl", train.batch, train.vocabularies)
#: vrt.data.read_jsonl
again = vrt.data.read_jsonl(folder / "train.jsonl", vocabularies=train.vocabularies)
assert again.batch.pulls["word"].tolist() == [1, 2]
#: vrt.data.read_trees
(folder / "trees.txt").write_text("(3 (2 good) (1 film))\n")
assert vrt.data.read_trees(folder / "trees.txt").batch.num_vertices == 3
#: vrt.data.read_conll
(folder / "ner.conll").write_text("Rome NNP I-LOC\nis VBZ O\n")
columns = vrt.data.read_conll(folder / "ner.conll", {"word": 0, "label": -1}, labels=["label"])
#: vrt.data.read_conllu
rows = ["1 it _ PRON _ _ 2 nsubj _ _", "2 works _ VERB _ _ 0 root _ _"]
(folder / "en.conllu").write_text("\n".join(row.replace(" ", "\t") for row in rows))
assert vrt.data.read_conllu(folder / "en.conllu", ["form"]).batch.child.tolist() == [0]
#: vrt.data.read_tagged
(folder / "wikiner.txt").write_text("Rome|I-LOC is|O far|O\n")
tagged = vrt.data.read_tagged(folder / "wikiner.txt", labels=["label"])
#: vrt.data.read_embeddings, vrt.data.Embeddings
(folder / "vectors.txt").write_text("a 0.5 0.25\n")
found = vrt.data.read_embeddings(
    folder / "vectors.txt", train.vocabularies["word"], vrt.init.normal(0.1)
)
assert found.share == 0.5
assert found.matrix[1].tolist() == [0.5, 0.25]
#: vrt.data.from_networkx
dag = networkx.DiGraph([("leaf", "root")])
dag.nodes["leaf"]["word"] = "good"
assert vrt.data.from_networkx([dag], ["word"]).batch.num_edges == 1


#: vrt.data.from_nltk
class Bracket(list):  # as an nltk.Tree
    def label(self):
        return "S"


assert vrt.data.from_nltk([Bracket(["good"])]).batch.num_graphs == 1
#: vrt.data.from_pyg
data = SimpleNamespace(num_nodes=2, edge_index=np.array([[0], [1]]))  # as a Data
assert vrt.data.from_pyg(data).children(1) == [0]


#: vrt.data.from_dgl
class Edges(dict):
    def __call__(self, **options):
        return np.array([0]), np.array([1])


dgl_graph = SimpleNamespace(  # as a DGLGraph
    ntypes=["_N"],
    canonical_etypes=[("_N", "_E", "_N")],
    num_nodes=lambda name: 2,
    nodes={"_N": SimpleNamespace(data={})},
    edges=Edges({("_N", "_E", "_N"): SimpleNamespace(data={})}),
)
assert vrt.data.from_dgl(dgl_graph).children(1) == [0]
#: vrt.data.Vocabulary, vrt.data.Vocabulary.build
vocabulary = vrt.data.Vocabulary.build({"good": 3, "rare": 1}, min_count=2)
assert vocabulary.words == ("<unk>", "good")
#: vrt.data.Vocabulary.of_labels
assert vrt.data.Vocabulary.of_labels(["b", "a", "b"]).words == ("a", "b")
#: vrt.data.Vocabulary.find, vrt.data.Vocabulary.index
assert vocabulary.find("good") == vocabulary.index("good") == 1
#: vrt.data.Vocabulary.encode
assert vocabulary.encode(["good", "new"]).tolist() == [1, 0]
#: vrt.data.Vocabulary.decode
assert vocabulary.decode([1, -1]) == ["good", None]
#: vrt.data.UNKNOWN
assert vocabulary.words[0] == vrt.data.UNKNOWN
#: vrt.data.FORMATS
assert "json-lines" in vrt.data.FORMATS
#: vrt.data.WHOLE
whole = vrt.data.load(folder / "train.jsonl", format="json-lines", splits=(vrt.data.WHOLE,))
#: vrt.data.load, vrt.data.Dataset
trees = vrt.data.load("generated", format="trees", splits=("train", "dev"))
assert trees.classes == 5
#: vrt.data.Dataset.vocabulary
assert trees.vocabulary.words[0] == "<unk>"
#: vrt.data.Dataset.labels
assert trees.labels == ()  # numbers
#: vrt.data.Dataset.sizes
assert trees.sizes()["classes"] == 5
#: vrt.data.catalogue, vrt.data.CatalogueEntry
assert "sst" in [entry.name for entry in vrt.data.catalogue("trees")]
#: vrt.data.CatalogueEntry.folder, vrt.data.CatalogueEntry.cached, vrt.data.fetch
for entry in vrt.data.catalogue():
    if entry.source and entry.cached:  # else it would be downloaded
        assert vrt.data.fetch(entry.name) == entry.folder
#: vrt.data.format_of
assert vrt.data.format_of("sst") == "trees"
#: vrt.data.generate_text, vrt.data.GeneratedText
text = vrt.data.generate_text(seed=1)["dev"]
assert text.perplexity > 1.0
#: vrt.data.generate_treebank
first_tree = vrt.data.generate_treebank(seed=1)["dev"].split("\n")[0]
#: vrt.data.write_treebank
vrt.data.write_treebank(folder / "treebank")
assert (folder / "treebank" / "dev.txt").exists()
#: vrt.data.minibatches
first, last = vrt.data.minibatches(np.array([5, 3, 4]), 2, seed=0, epoch=0)
assert sorted([*first, *last]) == [0, 1, 2]
#: vrt.data.Loader, vrt.data.Loader.state, vrt.data.Loader.load_state
loader = vrt.data.Loader(batch, batch_size=1, seed=3)
for minibatch in loader:
    net.step(minibatch, optimizer)
resumed = vrt.data.Loader(batch, batch_size=1, seed=3)
resumed.load_state(loader.state())
assert resumed.epoch == 1
#: vrt.schedules.RateSchedule, vrt.schedules.LambdaLR, vrt.schedules.RateSchedule.step
sgd = vrt.SGD(lr=1.0)
schedule = vrt.schedules.LambdaLR(sgd, lambda steps: 1.0 / (1.0 + steps))
schedule.step()
assert sgd.lr == 0.5
#: vrt.schedules.RateSchedule.is_of
assert schedule.is_of(sgd)
#: vrt.schedules.RateSchedule.state, vrt.schedules.RateSchedule.load_state
schedule.load_state(schedule.state)
#: vrt.schedules.StepLR
sgd = vrt.SGD(lr=1.0)
schedule = vrt.schedules.StepLR(sgd, step_size=1, gamma=0.5)
schedule.step()
assert sgd.lr == 0.5
#: vrt.schedules.LinearLR
sgd = vrt.SGD(lr=1.0)
schedule = vrt.schedules.LinearLR(sgd, start_factor=0.5, total_iters=10)
assert sgd.lr == 0.5
#: vrt.schedules.CosineAnnealingLR
sgd = vrt.SGD(lr=1.0)
schedule = vrt.schedules.CosineAnnealingLR(sgd, T_max=2)
schedule.step()
assert round(sgd.lr, 6) == 0.5
#: vrt.schedules.SequentialLR
sgd = vrt.SGD(lr=1.0)
parts = [vrt.schedules.LinearLR(sgd, total_iters=5), vrt.schedules.CosineAnnealingLR(sgd, T_max=20)]
schedule = vrt.schedules.SequentialLR(sgd, parts, milestones=[5])
#: vrt.schedules.ReduceLROnPlateau, vrt.schedules.ReduceLROnPlateau.step
sgd = vrt.SGD(lr=1.0)
plateau = vrt.schedules.ReduceLROnPlateau(sgd, patience=0)
for dev_loss in (1.0, 1.0):
    plateau.step(dev_loss)
assert sgd.lr == 0.1
#: vrt.schedules.ReduceLROnPlateau.state, vrt.schedules.ReduceLROnPlateau.load_state
plateau.load_state(plateau.state)
#: vrt.init.zeros, vrt.init.ones
bias, scale = vrt.Parameter(4, init=vrt.init.zeros), vrt.Parameter(4, init=vrt.init.ones)
#: vrt.init.xavier_uniform
drawn = vrt.init.xavier_uniform((4, 4), np.random.default_rng(0))
assert np.abs(drawn).max() <= (6 / (4 + 4)) ** 0.5
#: vrt.init.orthogonal
drawn = vrt.init.orthogonal((2, 4), np.random.default_rng(0))
assert np.allclose(drawn @ drawn.T, np.eye(2))
#: vrt.init.constant
mask = vrt.Parameter(2, init=vrt.init.constant([1.0, 0.0]), trainable=False)
#: vrt.init.normal, vrt.init.uniform
table = vrt.Parameter((10, 4), init=vrt.init.normal(0.1))
weight = vrt.Parameter((4, 4), init=vrt.init.uniform(0.05))
#: vrt.parallel.init, vrt.parallel.ProcessGroup
group = vrt.parallel.init(shares=8)  # those that torchrun or mpiexec has started: here one
net.step(batch, optimizer, group=group)
#: vrt.parallel.ProcessGroup.own, vrt.parallel.ProcessGroup.limit
assert group.own == slice(0, 8)
assert group.limit == 7.0  # seconds; a step has been done
#: vrt.parallel.ProcessGroup.gather, vrt.parallel.ProcessGroup.add_up
assert group.gather(np.array([1.0, 2.0])).shape == (group.size, 2)
numbers = np.array([1.0, 2.0])
group.add_up(numbers)
#: vrt.parallel.ProcessGroup.largest, vrt.parallel.ProcessGroup.broadcast
assert group.largest(3) == 3
assert group.broadcast(b"a text of process 0") == b"a text of process 0"
#: vrt.parallel.ProcessGroup.barrier, vrt.parallel.ProcessGroup.close
group.barrier()
group.close()
