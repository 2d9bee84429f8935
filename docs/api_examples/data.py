"""Examples of readers and data sets."""

from types import SimpleNamespace

import networkx
import numpy as np
from given import batch, folder, net, optimizer

import vertexrt as vrt

#: vrt.data.from_records, vrt.data.Examples
train = vrt.data.from_records([{"chain": 2, "pulls": {"word": ["a", "b"], "x": [0.5, None]}}])
assert train.vocabularies["word"].words == ("<unk>", "a", "b")
assert train.batch.num_graphs == 1
#: vrt.data.Examples.ids
named = vrt.data.from_records([{"id": "first", "chain": 1}, {"chain": 1}])
assert named.ids == ("first", None)
#: vrt.data.write_jsonl
vrt.data.write_jsonl(folder / "train.jsonl", train.batch, train.vocabularies)
#: vrt.data.read_jsonl
again = vrt.data.read_jsonl(folder / "train.jsonl", vocabularies=train.vocabularies)
assert again.batch.pulls["word"].tolist() == [1, 2]
#: vrt.data.read_trees
(folder / "trees.txt").write_text("(3 (2 good) (1 film))\n")
assert vrt.data.read_trees(folder / "trees.txt").batch.num_vertices == 3
#: vrt.data.read_conll
(folder / "ner.conll").write_text("Rome NNP I-LOC\nis VBZ O\n")
columns = vrt.data.read_conll(folder / "ner.conll", {"word": 0, "label": -1}, labels=["label"])
#: vrt.data.read_conllu
rows = ["1 it _ PRON _ _ 2 nsubj _ _", "2 works _ VERB _ _ 0 root _ _"]
(folder / "en.conllu").write_text("\n".join(row.replace(" ", "\t") for row in rows))
assert vrt.data.read_conllu(folder / "en.conllu", ["form"]).batch.child.tolist() == [0]
#: vrt.data.read_tagged
(folder / "wikiner.txt").write_text("Rome|I-LOC is|O far|O\n")
tagged = vrt.data.read_tagged(folder / "wikiner.txt", labels=["label"])
#: vrt.data.read_embeddings, vrt.data.Embeddings
(folder / "vectors.txt").write_text("a 0.5 0.25\n")
found = vrt.data.read_embeddings(
    folder / "vectors.txt", train.vocabularies["word"], vrt.init.normal(0.1)
)
assert found.share == 0.5
assert found.matrix[1].tolist() == [0.5, 0.25]
#: vrt.data.from_networkx
dag = networkx.DiGraph([("leaf", "root")])
dag.nodes["leaf"]["word"] = "good"
assert vrt.data.from_networkx([dag], ["word"]).batch.num_edges == 1


#: vrt.data.from_nltk
class Bracket(list):  # as an nltk.Tree
    def label(self):
        return "S"


assert vrt.data.from_nltk([Bracket(["good"])]).batch.num_graphs == 1
#: vrt.data.from_pyg
data = SimpleNamespace(num_nodes=2, edge_index=np.array([[0], [1]]))  # as a Data
assert vrt.data.from_pyg(data).children(1) == [0]


#: vrt.data.from_dgl
class Edges(dict):
    def __call__(self, **options):
        return np.array([0]), np.array([1])


dgl_graph = SimpleNamespace(  # as a DGLGraph
    ntypes=["_N"],
    canonical_etypes=[("_N", "_E", "_N")],
    num_nodes=lambda name: 2,
    nodes={"_N": SimpleNamespace(data={})},
    edges=Edges({("_N", "_E", "_N"): SimpleNamespace(data={})}),
)
assert vrt.data.from_dgl(dgl_graph).children(1) == [0]
#: vrt.data.Vocabulary, vrt.data.Vocabulary.build
vocabulary = vrt.data.Vocabulary.build({"good": 3, "rare": 1}, min_count=2)
assert vocabulary.words == ("<unk>", "good")
#: vrt.data.Vocabulary.of_labels
assert vrt.data.Vocabulary.of_labels(["b", "a", "b"]).words == ("a", "b")
#: vrt.data.Vocabulary.find, vrt.data.Vocabulary.index
assert vocabulary.find("good") == vocabulary.index("good") == 1
#: vrt.data.Vocabulary.encode
assert vocabulary.encode(["good", "new"]).tolist() == [1, 0]
#: vrt.data.Vocabulary.decode
assert vocabulary.decode([1, -1]) == ["good", None]
#: vrt.data.load, vrt.data.Dataset
trees = vrt.data.load("generated", format="trees", splits=("train", "dev"))
#: vrt.data.Dataset.classes
assert trees.classes == 5
whole = vrt.data.load(folder / "train.jsonl", format="json-lines", splits=("all",))
#: vrt.data.Dataset.vocabulary
assert trees.vocabulary.words[0] == "<unk>"
#: vrt.data.Dataset.labels
assert trees.labels == ()  # numbers
#: vrt.data.Dataset.sizes
assert trees.sizes()["classes"] == 5
#: vrt.data.catalogue
assert "sst" in [entry.name for entry in vrt.data.catalogue("trees")]
#: vrt.data.Loader, vrt.data.Loader.order, vrt.data.Loader.state, vrt.data.Loader.load_state
loader = vrt.data.Loader(batch, batch_size=1, seed=3)
assert sorted(ids.tolist() for ids in loader.order(epoch=0)) == [[0], [1]]
for minibatch in loader:
    net.step(minibatch, optimizer)
resumed = vrt.data.Loader(batch, batch_size=1, seed=3)
resumed.load_state(loader.state())
assert resumed.epoch == 1

#: vrt.data.edges.chain, vrt.data.edges.ends, vrt.data.edges.same
edges = vrt.data.edges
assert edges.chain(3).tolist() == [[0, 1], [1, 2]]
assert edges.chain(3, reverse=True).tolist() == [[1, 0], [2, 1]]
assert edges.ends([2, 1]).tolist() == [[1, 0], [2, 1]]
assert edges.same(2).tolist() == [[0, 0], [1, 1]]

#: vrt.data.edges.window, vrt.data.edges.all_pairs
assert vrt.data.edges.window(3, -1, 0).tolist() == [[0, 0], [0, 1], [1, 1], [1, 2], [2, 2]]
assert vrt.data.edges.all_pairs(2, 1).tolist() == [[0, 0], [1, 0]]

#: vrt.data.edges.layers, vrt.data.edges.rounds, vrt.data.edges.tree
assert vrt.data.edges.layers(2, depth=2).tolist() == [[0, 2], [1, 3]]
assert vrt.data.edges.rounds([(0, 1), (1, 0)], 2, times=1).tolist() == [[0, 3], [1, 2]]
assert vrt.data.edges.tree([2, 2, -1], down=True).tolist() == [[2, 0], [2, 1]]
