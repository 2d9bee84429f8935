"""The data sets that have a name: where they live, and what may be done with them."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from vertexrt.config import config


class Source(NamedTuple):
    """Say where an archive is downloaded from.

    Attributes:
        url: of a .zip or .tgz archive.
        sha256: of the archive; None when its home states none: then its files vouch for it.
        folder: inside the archive.
        files: names of what is taken from there, and the sha256 of each.
    """

    url: str
    sha256: str | None
    folder: str
    files: Mapping[str, str]


class CatalogueEntry(NamedTuple):
    """Describe a data set that has a name.

    Attributes:
        name: for `load` and `--data`.
        format: how it is read, a name of `FORMATS`.
        description: one line.
        home: where it comes from.
        licence: in a few words; the cards in `datasets/` say more.
        source: where it is downloaded from; None when it is generated.
    """

    name: str
    format: str
    description: str
    home: str
    licence: str
    source: Source | None = None

    @property
    def folder(self) -> Path:
        """Return the folder that the downloaded files are kept in."""
        return config().cache_dir / "data" / self.name

    @property
    def cached(self) -> bool:
        """Tell whether loading it needs no download."""
        files = self.source.files if self.source else ()
        return all((self.folder / name).is_file() for name in files)


def _generated(format: str, description: str) -> CatalogueEntry:
    licence = "Apache-2.0 (made by vertexrt)"
    return CatalogueEntry("generated", format, description, "vertexrt", licence)


_ENTRIES = (
    _generated("trees", "4,000 / 500 / 500 trees of a small grammar, labels 0..4 by composition"),
    CatalogueEntry(
        name="sst",
        format="trees",
        description="Stanford Sentiment Treebank, 8,544 / 1,101 / 2,210 trees, labels 0..4",
        home="https://nlp.stanford.edu/sentiment",
        licence="none stated; made public for research",
        source=Source(
            url="https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip",
            sha256="5c613a4f673fc74097d523a2c83f38e0cc462984d847b82c7aaf36b01cbbbfcc",
            folder="trees",
            files={
                "train.txt": "e2f3f41b0b1e6d4dddc0effe3bfc2d27ed8928079aa9a03d652311614fc5feb7",
                "dev.txt": "0e9336aed6e4730e19f58d00a77b3f0297efdb755f7b5e598c98a05e3f97ea40",
                "test.txt": "6e54806dee95cf80cd918e7dfb3f6770f6df24bf826f289a4d1f709e1c8f6761",
            },
        ),
    ),
    _generated("text", "6,000 / 600 / 600 sentences of a small grammar with agreement"),
    CatalogueEntry(
        name="ptb",
        format="text",
        description="Penn Treebank text (Mikolov's version), 42,068 / 3,370 / 3,761 sentences",
        home="http://www.fit.vutbr.cz/~imikolov/rnnlm",
        licence="LDC User Agreement; passed around for research, not open",
        source=Source(
            url="http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
            sha256=None,
            folder="simple-examples/data",
            files={
                "ptb.train.txt": (
                    "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"
                ),
                "ptb.valid.txt": (
                    "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"
                ),
                "ptb.test.txt": (
                    "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"
                ),
            },
        ),
    ),
    _generated("tree-fc", "complete binary trees, words at the leaves and a target at the root"),
    _generated("tagged", "600 / 150 / 150 sentences with names of people, places and firms"),
    _generated(
        "logic", "400 / 100 / 100 logic circuits of 4 constants and 12 gates; labels are values"
    ),
    _generated("pairs", "800 / 100 / 100 pairs: letters, and their reverse in upper case"),
    _generated(
        "circuits",
        "300 / 60 / 60 circuits of AND gates and inverters; targets are probabilities",
    ),
)


def catalogue(format: str | None = None) -> list[CatalogueEntry]:
    """Return the data sets that have a name, those of one format only when it is given."""
    return [entry for entry in _ENTRIES if format in (None, entry.format)]
