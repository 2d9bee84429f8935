"""Examples of checkpoints, errors and the version."""

from given import folder, net, optimizer

import vertexrt as vrt

#: vrt.save_checkpoint
vrt.save_checkpoint(folder / "net.safetensors", net, optimizer, meta={"epoch": 3})
#: vrt.load_checkpoint, vrt.Checkpoint
checkpoint = vrt.load_checkpoint(folder / "net.safetensors")
net.parameters.update(checkpoint.parameters)
optimizer.load_state(checkpoint.optimizer_state)
assert checkpoint.meta == {"epoch": 3}
#: vrt.VertexrtError
try:
    vrt.InputGraph.from_children([[0]])
except vrt.VertexrtError as error:
    print(error)  # names the vertices of the cycle
#: vrt.__version__
print(vrt.__version__)
