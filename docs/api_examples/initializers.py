"""Examples of initializers."""

import numpy as np

import vertexrt as vrt

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
