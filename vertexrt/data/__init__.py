"""Data sets: readers, generated data, download with a checksum, and minibatches."""

from vertexrt.data.batches import minibatches
from vertexrt.data.catalogue import CatalogueEntry, catalogue
from vertexrt.data.dataset import Dataset, Vocabulary
from vertexrt.data.download import fetch
from vertexrt.data.formats import FORMATS
from vertexrt.data.generated_text import GeneratedText, generate_text
from vertexrt.data.load import load
from vertexrt.data.treebank import generate_treebank, write_treebank

__all__ = [
    "FORMATS",
    "CatalogueEntry",
    "Dataset",
    "GeneratedText",
    "Vocabulary",
    "catalogue",
    "fetch",
    "generate_text",
    "generate_treebank",
    "load",
    "minibatches",
    "write_treebank",
]
