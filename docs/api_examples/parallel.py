"""Examples of several processes."""

import numpy as np
from given import batch, net, optimizer

import vertexrt as vrt

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
#: vrt.parallel.ProcessGroup.gather_rows
assert group.gather_rows(numbers, [2])[0].tolist() == [1.0, 2.0]
#: vrt.parallel.ProcessGroup.find_lost
group.find_lost(limit=2.0)
#: vrt.parallel.ProcessGroup.shared_out, vrt.parallel.ProcessGroup.began
other = group.shared_out(4)
other.began()  # nothing more is to be compiled
