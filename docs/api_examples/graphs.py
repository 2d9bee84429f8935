"""Examples of graphs and batches."""

import networkx
import numpy as np
from given import batch, graph
from networks import Bag

import vertexrt as vrt

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
bag = vrt.compile(Bag(), device="reference")(vrt.GraphBatch.from_graphs([typed]))
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
#: vrt.GraphBatch.with_pulls
assert batch.with_pulls({"weight": np.ones(6)}).pulls["weight"].sum() == 6.0
#: vrt.GraphBatch.of_type
assert vrt.GraphBatch.from_graphs([typed]).of_type("sentence").tolist() == [2]
#: vrt.Rows
image = vrt.Rows(np.ones((2, 5)), np.array([1, -1, 0], dtype=np.int32))
with_images = vrt.InputGraph.chain(3, {"image": image})
