"""Data sets: readers, generated data, download with a checksum, and minibatches."""

from vertexrt.data.batches import minibatches
from vertexrt.data.catalogue import CatalogueEntry, catalogue
from vertexrt.data.columns import Examples
from vertexrt.data.dataset import UNKNOWN, Dataset, Vocabulary
from vertexrt.data.download import fetch
from vertexrt.data.files import WHOLE
from vertexrt.data.formats import FORMATS
from vertexrt.data.generated_text import GeneratedText, generate_text
from vertexrt.data.jsonl import read_jsonl
from vertexrt.data.jsonl_writer import write_jsonl
from vertexrt.data.load import load
from vertexrt.data.treebank import generate_treebank, write_treebank

__all__ = [
    "FORMATS",
    "UNKNOWN",
    "WHOLE",
    "CatalogueEntry",
    "Dataset",
    "Examples",
    "GeneratedText",
    "Vocabulary",
    "catalogue",
    "fetch",
    "generate_text",
    "generate_treebank",
    "load",
    "minibatches",
    "read_jsonl",
    "write_jsonl",
    "write_treebank",
]
