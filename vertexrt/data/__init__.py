"""Data sets: readers, generated data, download with a checksum, and minibatches."""

from vertexrt.data.catalogue import CatalogueEntry, catalogue
from vertexrt.data.dataset import UNKNOWN, Dataset, Vocabulary
from vertexrt.data.download import fetch
from vertexrt.data.embeddings import Embeddings, read_embeddings
from vertexrt.data.files import WHOLE
from vertexrt.data.generated_text import GeneratedText, generate_text
from vertexrt.data.graph_libraries import from_dgl, from_networkx, from_pyg
from vertexrt.data.load import FORMATS, format_of, load
from vertexrt.data.loader import Loader, minibatches
from vertexrt.data.readers import (
    from_nltk,
    from_records,
    read_conll,
    read_conllu,
    read_jsonl,
    read_tagged,
    read_trees,
    write_jsonl,
)
from vertexrt.data.records import Examples, real_pulls
from vertexrt.data.treebank import generate_treebank, write_treebank

__all__ = [
    "FORMATS",
    "UNKNOWN",
    "WHOLE",
    "CatalogueEntry",
    "Dataset",
    "Embeddings",
    "Examples",
    "GeneratedText",
    "Loader",
    "Vocabulary",
    "catalogue",
    "fetch",
    "format_of",
    "from_dgl",
    "from_networkx",
    "from_nltk",
    "from_pyg",
    "from_records",
    "generate_text",
    "generate_treebank",
    "load",
    "minibatches",
    "read_conll",
    "read_conllu",
    "read_embeddings",
    "read_jsonl",
    "read_tagged",
    "read_trees",
    "real_pulls",
    "write_jsonl",
    "write_treebank",
]
