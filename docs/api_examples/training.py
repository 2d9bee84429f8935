"""Examples of optimizers, averages and carried states."""

import numpy as np
from given import Tree, batch, net, optimizer

import vertexrt as vrt


#: vrt.Optimizer, vrt.Optimizer.update
class SignDescent(vrt.Optimizer):
    """A rule of one's own, on the host."""

    def update(self, store):
        for name in store.trained:
            store.value(name)[...] -= self.lr * np.sign(store.gradient(name))


before = net.parameters["u"]
net.step(batch, SignDescent(lr=0.01))
assert np.allclose(np.abs(net.parameters["u"] - before), 0.01)

#: vrt.Optimizer.moment_names
assert vrt.Adam(lr=0.01).moment_names == ("m", "v")
#: vrt.Optimizer.lr
optimizer.lr = lambda steps: 0.1 / (1 + steps)
optimizer.lr = 0.05
#: vrt.Optimizer.groups
optimizer.groups = {"table": {"frozen": True}}
optimizer.groups = {}
#: vrt.Optimizer.step
run = net.record(batch)
run.backward()
optimizer.step(net)
#: vrt.Optimizer.state, vrt.Optimizer.load_state, vrt.Optimizer.steps
again = vrt.SGD(lr=0.05)
again.load_state(optimizer.state())
assert again.steps == optimizer.steps
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
    averaged = net(batch)
#: vrt.ExponentialMovingAverage.state, vrt.ExponentialMovingAverage.load_state
average.load_state(average.state())


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
    pushed = counter(carried.put(piece))
    carried.keep(piece, pushed)
    assert pushed["n"][-1] == end
carried.restart()
#: vrt.CarriedState.state, vrt.CarriedState.load_state
carried.load_state(carried.state())
#: vrt.CarriedState.ends
assert carried.ends(piece) == [2]
