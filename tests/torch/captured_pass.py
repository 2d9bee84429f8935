"""Call a module while a CUDA graph is captured, print how it is refused, and call it again.

python -m tests.torch.captured_pass
"""

from __future__ import annotations

import torch

import vertexrt as vrt
import vertexrt.torch as vt
from tests.torch.test_module import SIZE, Node, trees
from vertexrt.errors import UsageError

if __name__ == "__main__":
    module, batch = vt.Module(vrt.compile(Node(), device="cuda", seed=2)), trees(4)
    x = torch.randn(batch.num_vertices, SIZE, device="cuda")
    expected = module(batch, x=x)["h"]
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            module(batch, x=x + 0.0)
    except UsageError as error:
        print(error)
    assert torch.equal(module(batch, x=x)["h"], expected)
