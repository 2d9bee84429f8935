"""Examples of ops."""

import numpy as np
from given import at_root

import vertexrt as vrt

#: vrt.abs
assert at_root(lambda f, x, y: vrt.abs(x)) == [1.0, 2.0]
#: vrt.clip
assert at_root(lambda f, x, y: vrt.clip(x, 0.0, 1.0)) == [0.0, 1.0]
#: vrt.nn.elu
assert at_root(lambda f, x, y: vrt.nn.elu(x)) == [-0.632, 2.0]
#: vrt.exp
assert at_root(lambda f, x, y: vrt.exp(x)) == [0.368, 7.389]
#: vrt.floor
assert at_root(lambda f, x, y: vrt.floor(y)) == [3.0, 0.0]
#: vrt.nn.gelu
assert at_root(lambda f, x, y: vrt.nn.gelu(x)) == [-0.159, 1.954]
assert at_root(lambda f, x, y: vrt.nn.gelu(x, "tanh")) == [-0.159, 1.955]
#: vrt.nn.leaky_relu
assert at_root(lambda f, x, y: vrt.nn.leaky_relu(x, 0.1)) == [-0.1, 2.0]
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
#: vrt.nn.silu
assert at_root(lambda f, x, y: vrt.nn.silu(x)) == [-0.269, 1.762]
#: vrt.nn.softplus
assert at_root(lambda f, x, y: vrt.nn.softplus(x)) == [0.313, 2.127]
#: vrt.sin
assert at_root(lambda f, x, y: vrt.sin(x)) == [-0.841, 0.909]
#: vrt.cos
assert at_root(lambda f, x, y: vrt.cos(x)) == [0.54, -0.416]
#: vrt.erf
assert at_root(lambda f, x, y: vrt.erf(x)) == [-0.843, 0.995]
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


#: vrt.nn.block_diagonal
class Blocks(vrt.VertexFunction):
    def __init__(self):
        super().__init__(arity=1, state={"h": 6})
        self.u = vrt.Parameter((2, 3, 4))

    def forward(self):
        product = vrt.nn.block_diagonal(self.u, self.pull("x", shape=(8,)))
        self.scatter(h=product)
        self.push("product", product)


blocks = vrt.compile(Blocks(), device="reference")
x = np.random.default_rng(0).standard_normal(8)
pushed = blocks(vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(1, {"x": x[None]})]))
first_half = blocks.parameters["u"][0] @ x[:4]
assert np.allclose(pushed["product"][0, :3], first_half, atol=1e-5)

#: vrt.concat
assert at_root(lambda f, x, y: vrt.concat(x, y)) == [-1.0, 2.0, 3.0, 0.5]
#: vrt.repeat
assert at_root(lambda f, x, y: vrt.repeat(x, 2)) == [-1.0, -1.0, 2.0, 2.0]
#: vrt.tile
assert at_root(lambda f, x, y: vrt.tile(x, 2)) == [-1.0, 2.0, -1.0, 2.0]
#: vrt.cumsum
assert at_root(lambda f, x, y: vrt.cumsum(vrt.concat(x, y))) == [-1.0, 1.0, 4.0, 4.5]
assert at_root(lambda f, x, y: vrt.sum(vrt.cumsum(f.gather_all().h, axis="children"))) == [5.0, 8.0]
#: vrt.sort
assert at_root(lambda f, x, y: vrt.sort(vrt.concat(x, y))) == [-1.0, 0.5, 2.0, 3.0]
#: vrt.top_k
assert at_root(lambda f, x, y: vrt.top_k(vrt.concat(x, y), 2)) == [3.0, 2.0]
assert at_root(lambda f, x, y: vrt.top_k(f.gather_all().h, 2)) == [[3.0, 4.0], [1.0, 2.0]]
#: vrt.outer
assert at_root(lambda f, x, y: vrt.outer(x, y)) == [[-3.0, -0.5], [6.0, 1.0]]
assert at_root(lambda f, x, y: vrt.outer(x, y) @ y) == [-9.25, 18.5]
assert at_root(lambda f, x, y: x @ vrt.outer(x, y)) == [15.0, 2.5]
#: vrt.reshape
assert at_root(lambda f, x, y: vrt.reshape(vrt.tile(x, 2), 2, 2)) == [[-1.0, 2.0], [-1.0, 2.0]]
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
assert at_root(lambda f, x, y: vrt.sum(f.gather_all().h, axis="children")) == [4.0, 6.0]
#: vrt.prod
assert at_root(lambda f, x, y: vrt.prod(y)) == 1.5
assert at_root(lambda f, x, y: vrt.prod(f.gather_all().h)) == [3.0, 8.0]
#: vrt.max
assert at_root(lambda f, x, y: vrt.max(f.gather_all().h)) == [3.0, 4.0]
#: vrt.mean
assert at_root(lambda f, x, y: vrt.mean(f.gather_all().h)) == [2.0, 3.0]


#: vrt.softmax
def attention(f, x, y):
    kids = f.gather_all()
    score = vrt.sum(kids.h * y, axis="elements")  # 4 and 11
    return vrt.sum(vrt.softmax(score, axis="children") * kids.h)


assert at_root(attention) == [2.998, 3.998]
#: vrt.log_softmax
assert at_root(lambda f, x, y: vrt.log_softmax(x)) == [-3.049, -0.049]
#: vrt.logsumexp
assert at_root(lambda f, x, y: vrt.logsumexp(f.gather_all().h, axis="children")) == [3.127, 4.127]
#: vrt.split
assert at_root(lambda f, x, y: vrt.split(vrt.concat(x, y), 2)[1]) == [3.0, 0.5]
#: vrt.stack
assert at_root(lambda f, x, y: vrt.stack(x[1], y[1])) == [2.0, 0.5]
#: vrt.random.dropout
assert at_root(lambda f, x, y: vrt.random.dropout(x, 0.5)) == [-1.0, 2.0]  # drops in training only
#: vrt.random.uniform
assert all(
    1.0 <= number < 2.0 for number in at_root(lambda f, x, y: vrt.random.uniform(2, 1.0, 2.0))
)
#: vrt.random.normal
sample = at_root(lambda f, x, y: vrt.random.normal(2, x, vrt.exp(y)))
#: vrt.losses.cross_entropy
assert at_root(lambda f, x, y: vrt.losses.cross_entropy(x, f.pull("k"))) == 0.049
#: vrt.losses.multi_margin_loss
assert at_root(lambda f, x, y: vrt.losses.multi_margin_loss(y, f.pull("k"))) == 1.75
#: vrt.losses.squared_error
assert at_root(lambda f, x, y: vrt.losses.squared_error(x, y)) == 18.25
#: vrt.losses.binary_cross_entropy_with_logits
assert at_root(lambda f, x, y: vrt.losses.binary_cross_entropy_with_logits(x, 1.0)) == 1.44
#: vrt.losses.hinge_loss
assert at_root(lambda f, x, y: vrt.losses.hinge_loss(x, 1.0)) == 2.0
