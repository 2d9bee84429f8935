"""Examples of vertex functions, models and networks."""

import numpy as np
from given import Tree, at_root, batch, optimizer

import vertexrt as vrt


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
assert vrt.compile(Total(), device="reference")(tree)["sum"][2] == 6.0

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


depths = vrt.compile(Depth(), device="reference")(batch)["depth"]
assert depths[:3].tolist() == [[1.0], [1.0], [2.0]]

#: vrt.VertexFunction.pull
assert at_root(lambda f, x, y: f.pull("x", shape=(2,))) == [-1.0, 2.0]
#: vrt.VertexFunction.pull_index
assert at_root(lambda f, x, y: f.pull_index("k") + 1) == 2.0
#: vrt.VertexFunction.edge
assert at_root(lambda f, x, y: vrt.sum(f.edge("weight") * f.gather_all().h)) == [6.5, 9.0]
#: vrt.VertexFunction.edge_index
assert at_root(lambda f, x, y: vrt.sum(f.edge_index("kind") * f.gather_all().h)) == [7.0, 10.0]
#: vrt.VertexFunction.present
assert at_root(lambda f, x, y: f.present(0)) == 1.0
#: vrt.VertexFunction.count_children
assert at_root(lambda f, x, y: f.count_children()) == 2.0
#: vrt.VertexFunction.training
assert at_root(lambda f, x, y: vrt.where(f.training, x, y)) == [3.0, 0.5]
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
#: vrt.bench.Passes
plain = vrt.compile(Tree(), device="reference", passes=vrt.bench.Passes(fuse=False, merge=False))
#: vrt.Network, vrt.Network.step
losses = [net.step(batch, optimizer) for _ in range(5)]
assert losses[-1] < losses[0]
#: vrt.Network.executor
assert net.executor is not None
#: vrt.Network.program
assert "tanh" in str(net.program)
#: vrt.Network.device
assert net.device == "reference"
#: vrt.Network.reduction
assert net.reduction == "mean_graphs"
#: vrt.Network.pushes
assert net.pushes == ("h", "loss")
#: vrt.types.Loss
loss = net.step(batch, optimizer, outputs=["h"], vertices=batch.roots)
assert float(loss) > 0  # on a GPU this waits for the step
assert f"{loss:.2f}" == f"{float(loss):.2f}"
assert len(loss.outputs["h"]) == len(batch.roots)
#: vrt.Network.parameters
net.parameters["table"] = np.full((10, 4), 0.1)  # pretrained embeddings, say
net.parameters.update({"u": np.eye(4), "v": np.zeros((2, 4))})  # all or none
#: vrt.Network.state, vrt.Network.load_state
state = net.state()  # {"parameters": {...}, "random": {"seed": 3, "draws": ...}}
assert net.load_state(state) == ((), ())
differences = net.load_state({"parameters": {"u": np.eye(4)}}, strict=False)
assert "table" in differences.missing
#: vrt.Network.warm
net.warm(batch, optimizer)
#: vrt.Network.sync
net.sync()  # on a GPU: waits for all steps
#: vrt.Network.__call__, vrt.types.Outputs
outputs = net(batch, outputs=["h"])
assert outputs["h"].shape == (6, 4)
here = net(batch, outputs=["h"], arrays="device")  # on a GPU, arrays of CuPy
assert here["h"].shape == (6, 4)
#: vrt.types.Outputs.settle
outputs.settle()  # waits, where nothing is to be read yet
#: vrt.Network.plan, vrt.types.Plan, vrt.types.Plan.__call__
plan = net.plan(batch, outputs=["h"], vertices=batch.roots)  # scheduled once, for its graphs
assert isinstance(plan, vrt.types.Plan)
assert len(plan({"word": batch.pulls["word"]})["h"]) == len(batch.roots)
#: vrt.Network.record, vrt.types.Record, vrt.types.Record.backward, vrt.types.Record.done
run = net.record(batch)
run.backward({"h": np.ones_like(run.outputs["h"])})
assert run.done
#: vrt.types.Gradients
run = net.record(batch)
gradients = run.backward({"h": np.ones_like(run.outputs["h"])})
assert gradients.parameters["u"].shape == (4, 4)
assert run.done
#: vrt.Network.gradients, vrt.Network.zero_grad
net.zero_grad()
for _ in range(2):  # the mean over two batches
    net.record(batch).backward(scale=0.5)
assert net.gradients["v"].shape == (2, 4)
#: vrt.Network.explain
assert "tanh" in net.explain()
#: vrt.Network.explain_batch
print(net.explain_batch(batch))
#: vrt.Network.trace
persistent = vrt.compile(Tree(), device="reference", engine="persistent")
with persistent.trace() as timeline:
    persistent.step(batch, vrt.SGD(lr=0.1))


#: vrt.Decoder, vrt.Decoder.__call__, vrt.types.Generated
class Countdown(vrt.VertexFunction):
    def __init__(self):
        super().__init__(state={})
        self.next = vrt.Parameter((4, 4), init=vrt.init.constant(9.0 * np.eye(4, k=-1)))

    def forward(self):
        self.push("logits", vrt.embed(self.next, self.pull("word")))


start = vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(1, {"word": [3]})])
countdown = vrt.Decoder(vrt.compile(Countdown(), device="reference"), start)
[[generated]] = countdown(max_length=10, end=0)  # a vrt.types.Generated
assert generated.words == (2, 1, 0)
[[generated]] = countdown({"word": [2]}, max_length=10, end=0)
assert generated.words == (1, 0)
assert generated.missing == 0
