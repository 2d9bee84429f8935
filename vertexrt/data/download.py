"""Where data sets come from; each is downloaded once, checked, and kept in the cache folder."""

import hashlib
import http.client
import lzma
import os
import shutil
import struct
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from vertexrt.cache.folders import make_private
from vertexrt.config import config
from vertexrt.errors import DataError, UsageError, nearest

_TIMEOUT_SECONDS = 60
_CHUNK_BYTES = 1 << 20

_LARGEST_ARCHIVE = 1 << 30  # bytes; those of the catalogue have at most 40 MB
_LARGEST_FILE = 256 << 20  # bytes, unpacked

# What the standard library raises for an archive that is damaged (ValueError: its text fields), is
# encrypted (RuntimeError) or packed in a way that it does not know (NotImplementedError).
_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
)


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


def downloaded() -> list[CatalogueEntry]:
    """Return the data sets that are downloaded."""
    return [
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
    ]


def fetch(name: str) -> Path:
    """Return the folder of a named data set, downloading it when it is not there.

    The archive and its files are checked against their sha256 and written under a temporary name;
    the folder appears when all is well.

    Args:
        name: of an entry of the catalogue that is downloaded.
    Raises: UsageError, when there is no such entry; DataError, when there is no network, the
        checksum is wrong, or the cache folder cannot be written; the text says what to do.
    """
    entries = {entry.name: entry for entry in downloaded()}
    if name not in entries:
        raise UsageError.at(
            "data fetch",
            f"'{name}'",
            f"these can be downloaded: {', '.join(entries)}",
            "give one of them." + nearest(name, entries),
        )
    entry = entries[name]
    source, folder, where = entry.source, entry.folder, f"data {name}"
    assert source is not None
    if entry.cached and all(
        hashlib.sha256((folder / file).read_bytes()).hexdigest() == sha256
        for file, sha256 in source.files.items()
    ):
        return folder
    try:
        if fault := make_private(folder.parent):
            raise OSError(0, fault)
        scratch = tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder.parent)
    except OSError as error:
        raise DataError.at(
            where,
            f"cannot write {folder.parent}: {error.strerror}",
            "expected a cache folder that may be written",
            "set VERTEXRT_CACHE to another folder",
        ) from error
    with scratch:
        archive = Path(scratch.name) / "archive"
        ready = Path(scratch.name) / "ready"
        _require(where, source.url, _receive(where, source, archive), source.sha256)
        ready.mkdir()
        for member, digest in _unpack(where, source, archive, ready).items():
            _require(where, member, digest, source.files[os.path.basename(member)])
        if folder.exists():  # left incomplete, or made by another process in the meantime
            shutil.rmtree(folder)
        os.rename(ready, folder)
    return folder


def _receive(where: str, source: Source, to: Path) -> str:
    """Write what the address answers to a file; return its sha256."""
    request = urllib.request.Request(source.url, headers={"User-Agent": "vertexrt"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            return _copy(answer, to, _LARGEST_ARCHIVE)
    except (OSError, http.client.HTTPException, ValueError) as error:  # the last: a redirection
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise DataError.at(
            where,
            f"cannot download {source.url}: {reason}",
            "expected a network and an answer from there",
            f"try again, or get {', '.join(source.files)} by other means and give the path of"
            " their folder in place of the name",
        ) from error


def _unpack(where: str, source: Source, archive: Path, to: Path) -> dict[str, str]:
    """Write the source's files, and no others, under their own names; return the sha256 of each."""
    wanted = {f"{source.folder}/{name}": to / name for name in source.files}
    digests: dict[str, str] = {}
    zipped = source.url.endswith(".zip")
    try:
        packed: Any
        with zipfile.ZipFile(archive) if zipped else tarfile.open(archive) as packed:
            for info in packed.infolist() if zipped else packed:
                member = (info.filename if zipped else info.name).removeprefix("./")
                if member in wanted and (zipped or info.isfile()):  # no link, and no folder
                    target = wanted.pop(member)
                    with packed.open(info) if zipped else packed.extractfile(info) as file:
                        digests[member] = _copy(file, target, _LARGEST_FILE, f"{target.name} has ")
    except _DAMAGED as error:
        raise _not_the_archive(where, source, f"no archive that can be read ({error})") from error
    if wanted:
        raise _not_the_archive(where, source, f"an archive without {', '.join(wanted)}")
    return digests


def _copy(given: IO[bytes], target: Path, most: int, what: str = "") -> str:
    """Write a stream to a file: what an archive says of a file's size need not be true.

    Returns: its sha256.
    Raises: OSError, when it is too large; what the reader of the stream raises.
    """
    digest = hashlib.sha256()
    with target.open("wb") as file:
        while chunk := given.read(_CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
            if file.tell() > most:
                raise OSError(f"{what}more than {most >> 20} MiB")
    return digest.hexdigest()


def _not_the_archive(where: str, source: Source, got: str) -> DataError:
    return DataError.at(
        where,
        f"{source.url} gave {got}",
        f"expected an archive with {', '.join(source.files)}",
        "try again, or give the path of a folder that holds these files",
    )


def _require(where: str, what: str, found: str, expected: str | None) -> None:
    """Refuse another sha256 than the one that is known."""
    if expected not in (None, found):
        raise DataError.at(
            where,
            f"{what} has the sha256 {found}",
            f"expected {expected}",
            "nothing was kept; try again, or give the path of a folder that you trust",
        )
