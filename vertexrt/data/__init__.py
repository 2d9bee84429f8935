"""Data sets: readers, generated data, download with a checksum, and minibatches."""

from typing import TYPE_CHECKING

from vertexrt.data import edges
from vertexrt.data.dataset import Dataset, Loader, Vocabulary
from vertexrt.data.embeddings import Embeddings, read_embeddings
from vertexrt.data.graph_libraries import from_dgl, from_networkx, from_pyg
from vertexrt.data.load import catalogue, load
from vertexrt.data.readers import (
    from_nltk,
    read_conll,
    read_conllu,
    read_tagged,
    read_trees,
)
from vertexrt.data.records import Examples, from_records, read_jsonl, write_jsonl
from vertexrt.instead import instead

__all__ = [
    "Dataset",
    "Embeddings",
    "Examples",
    "Loader",
    "Vocabulary",
    "catalogue",
    "edges",
    "from_dgl",
    "from_networkx",
    "from_nltk",
    "from_pyg",
    "from_records",
    "load",
    "read_conll",
    "read_conllu",
    "read_embeddings",
    "read_jsonl",
    "read_tagged",
    "read_trees",
    "write_jsonl",
]

if not TYPE_CHECKING:  # type checkers know what there is
    __getattr__ = instead("vrt.data", __all__)
