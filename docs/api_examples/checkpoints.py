"""Examples of checkpoints, errors and the version."""

from given import folder, net, optimizer

import vertexrt as vrt

#: vrt.save_checkpoint
vrt.save_checkpoint(folder / "net.safetensors", net, optimizer, meta={"epoch": 3})
#: vrt.load_checkpoint, vrt.types.Checkpoint
checkpoint = vrt.load_checkpoint(folder / "net.safetensors")
net.parameters.update(checkpoint.parameters)
optimizer.load_state(checkpoint.optimizer_state)
assert checkpoint.meta == {"epoch": 3}
#: vrt.errors.VertexrtError
try:
    vrt.InputGraph.from_children([[0]])
except vrt.errors.VertexrtError as error:
    print(error)  # names the vertices of the cycle
#: vrt.errors.GraphError, vrt.errors.PullError, vrt.errors.DataError
of_graphs = [vrt.errors.GraphError, vrt.errors.PullError, vrt.errors.DataError]
assert all(issubclass(each, vrt.errors.VertexrtError) for each in of_graphs)
#: vrt.errors.TraceError, vrt.errors.FieldError, vrt.errors.PlanError
of_functions = [vrt.errors.TraceError, vrt.errors.FieldError, vrt.errors.PlanError]
assert all(issubclass(each, vrt.errors.VertexrtError) for each in of_functions)
#: vrt.errors.UsageError, vrt.errors.UnknownParameterError, vrt.errors.NumericError
of_calls = [vrt.errors.UsageError, vrt.errors.UnknownParameterError, vrt.errors.NumericError]
assert all(issubclass(each, vrt.errors.VertexrtError) for each in of_calls)
#: vrt.errors.CheckpointError, vrt.errors.RoomError
of_files = [vrt.errors.CheckpointError, vrt.errors.RoomError]
assert all(issubclass(each, vrt.errors.VertexrtError) for each in of_files)
#: vrt.errors.DeviceError, vrt.errors.NoKernelError, vrt.errors.ParallelError
of_devices = [vrt.errors.DeviceError, vrt.errors.NoKernelError, vrt.errors.ParallelError]
assert all(issubclass(each, vrt.errors.VertexrtError) for each in of_devices)
#: vrt.__version__
print(vrt.__version__)
