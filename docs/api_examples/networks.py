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
#: vrt.Network.reduction
assert net.reduction == "graph"
#: vrt.Network.pushes
assert net.pushes == ("h", "loss")
#: vrt.Network.outputs
loss = net.step(batch, optimizer, outputs=["h"])
assert loss.outputs["h"].shape == (6, 4)
#: vrt.Network.parameters
net.parameters["table"] = np.full((10, 4), 0.1)  # pretrained embeddings, say
#: vrt.Network.set_parameters
differences = net.load_state({"parameters": {"u": np.eye(4)}}, strict=False)
#: vrt.Network.warm
net.warm(batch, optimizer)
#: vrt.Network.sync
last_loss = net.sync()
#: vrt.Network.steps_under_way
assert net.steps_under_way == 0  # on a GPU: those whose losses are not known yet
#: vrt.Network.forward
assert net(batch, outputs=["h"])["h"].shape == (6, 4)
#: vrt.OnDevice, vrt.OnDevice.forward, vrt.OnDevice.parameters
assert isinstance(net.on_device, vrt.OnDevice)
here = net.record(batch, outputs=["h"], arrays="device")  # on a GPU, arrays of CuPy
assert here.outputs["h"].shape == net.on_device.parameters["table"][:6].shape
#: vrt.OnDevice.backward
assert here.backward({"h": here.outputs["h"]}).parameters["u"].shape == (4, 4)
#: vrt.OnDevice.step, vrt.OnDevice.outputs
net.step(batch, optimizer, outputs=["h"], vertices=batch.roots, arrays="device")
assert len(net.on_device.outputs["h"]) == len(batch.roots)
#: vrt.OnDevice.submit
assert net(batch, outputs=["h"], arrays="device")["h"].shape == (6, 4)
#: vrt.Network.plan, vrt.Plan, vrt.Plan.forward
plan = net.plan(batch, outputs=["h"], vertices=batch.roots)  # scheduled once, for its graphs
assert isinstance(plan, vrt.Plan)
assert len(plan({"word": batch.pulls["word"]})["h"]) == len(batch.roots)
#: vrt.OnDevice.plan
assert net.plan(batch, arrays="device")()["h"].shape == (6, 4)
#: vrt.Network.submit
assert net(batch, outputs=["h"])["h"].shape == (6, 4)
#: vrt.Network.backward, vrt.Network.keeps, vrt.Gradients
outputs = net.record(batch)
assert net.keeps(outputs.outputs)
gradients = outputs.backward({"h": np.ones((6, 4))})
assert gradients.parameters["u"].shape == (4, 4)
#: vrt.Network.gradients, vrt.Network.zero_grad
net.zero_grad()
for _ in range(2):  # the mean over two batches
    outputs = net.record(batch)
    outputs.backward(scale=0.5)
assert net.gradients["v"].shape == (2, 4)
#: vrt.Network.random_state, vrt.Network.set_random_state
state = net.state()["random"]
net.load_state({"random": state})
#: vrt.Network.explain
assert "tanh" in net.explain()
#: vrt.Network.explain_batch
print(net.explain_batch(batch))
#: vrt.Network.trace
persistent = vrt.compile(Tree(), device="reference", engine="persistent")
with persistent.trace() as timeline:
    persistent.step(batch, vrt.SGD(lr=0.1))
