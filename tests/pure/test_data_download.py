"""Downloads: checked, written under a temporary name, and clear about what went wrong."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.messages import text_of
from vertexrt.data import catalogue, download, load
from vertexrt.data.download import CatalogueEntry, Source, fetch
from vertexrt.errors import DataError, UsageError

TEXTS = {f"{name}.txt": f"({n} word)\n".encode() for n, name in enumerate(("train", "dev", "test"))}
FILES = {f"./trees/{name}": text for name, text in TEXTS.items()} | {"readme": b"hello"}
Publish = Callable[..., CatalogueEntry]


def zipped(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def tarred(files: dict[str, bytes], link: str | None = None) -> bytes:
    """Return an archive; a name may be that of a link to the file `readme`."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            if name == link:
                info.type, info.linkname, info.size = tarfile.SYMTYPE, "readme", 0
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def marked(place: int, value: int) -> bytes:
    """Change a byte of every member's header in a .zip; in its list it stands 2 bytes later."""
    data = bytearray(ZIP)
    for sign, offset in ((b"PK\x03\x04", place), (b"PK\x01\x02", place + 2)):
        at = data.find(sign)
        while at >= 0:
            data[at + offset] = value
            at = data.find(sign, at + 4)
    return bytes(data)


ZIP, TGZ = zipped(FILES), tarred(FILES)
GOT, NONE = "a.zip gave an archive without trees/", "gave no archive that can be read ("
# Name and content of an archive, the checksum that it should have -> what is said of it.
WRONG: dict[str, tuple[str, bytes, str | None, str]] = {
    "another archive": (
        "a.zip",
        ZIP,
        "0" * 64,
        f"a.zip has the sha256 {sha256(ZIP)}; expected {'0' * 64}; nothing was kept; try again,"
        " or give the path of a folder that you trust.",
    ),
    "another file": (
        "a.tgz",
        tarred(FILES | {"./trees/dev.txt": b"other"}),
        None,
        f"trees/dev.txt has the sha256 {sha256(b'other')}; expected {sha256(TEXTS['dev.txt'])};",
    ),
    "a beginning of a .zip": ("a.zip", ZIP[:10], None, f"a.zip {NONE}"),
    "half of a .tgz": ("a.tgz", TGZ[:150], None, f"a.tgz {NONE}"),
    "a page": ("a.tgz", b"<html>not found</html>", None, f"a.tgz {NONE}"),
    "an encrypted archive": ("a.zip", marked(6, 1), None, "is encrypted, password required"),
    "unknown compression": ("a.zip", marked(8, 97), None, "compression method is not supported"),
    "no bzip2": ("a.zip", marked(8, 12), None, "Invalid data stream"),
    "no LZMA": ("a.zip", marked(8, 14), None, "no archive that can be read"),
    "no dev and test": (
        "a.zip",
        zipped({"trees/train.txt": TEXTS["train.txt"]}),
        None,
        f"{GOT}dev.txt, trees/test.txt; expected an archive with train.txt, dev.txt, test.txt;",
    ),
    "a link": (
        "a.tgz",
        tarred(FILES, "./trees/train.txt"),
        None,
        "gave an archive without trees/train.txt; ",
    ),
}


@pytest.fixture
def publish(tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Put an archive at an address and an entry `tiny` into the catalogue."""

    def put(
        name: str = "a.zip", archive: bytes = ZIP, checksum: str | None = None
    ) -> CatalogueEntry:
        (tmp_path / name).write_bytes(archive)
        files = {file: sha256(text) for file, text in TEXTS.items()}
        source = Source((tmp_path / name).as_uri(), checksum, "trees", files)
        entry = CatalogueEntry("tiny", "trees", "three trees", "here", "none", source)
        monkeypatch.setattr(download, "downloaded", lambda: [entry])
        return entry

    return put


@pytest.mark.parametrize(("name", "archive"), [("a.zip", ZIP), ("a.tgz", TGZ)])
def test_what_is_fetched_is_kept(
    publish: Publish, cache_folder: Path, tmp_path: Path, name: str, archive: bytes
) -> None:
    """Once; a folder that is incomplete, or whose files have changed, is replaced."""
    entry = publish(name, archive, sha256(archive))
    dev = entry.folder / "dev.txt"
    dev.parent.mkdir(parents=True, mode=0o700)
    for damage in (b"half", b"(2 other)\n"):
        dev.write_bytes(damage)
        assert entry.cached is (damage != b"half")
        assert fetch("tiny") == cache_folder / "data" / "tiny" == entry.folder
        assert entry.cached
        assert {path.name: path.read_bytes() for path in entry.folder.iterdir()} == TEXTS
        assert [path.name for path in (cache_folder / "data").iterdir()] == ["tiny"]
    (tmp_path / name).unlink()
    assert load(fetch("tiny"), format="trees").splits["dev"].num_graphs == 1


@pytest.mark.parametrize("what", WRONG)
def test_an_archive_that_is_refused_leaves_nothing(
    publish: Publish, cache_folder: Path, what: str
) -> None:
    *given, expected = WRONG[what]
    entry = publish(*given)
    text = text_of(DataError, lambda: fetch("tiny"))
    assert text.startswith("[data tiny] ")
    assert expected in text
    assert not entry.cached
    assert not list((cache_folder / "data").iterdir())


@pytest.mark.parametrize(("name", "archive"), [("a.zip", ZIP), ("a.tgz", TGZ)])
def test_a_file_that_is_too_large_is_not_unpacked(
    publish: Publish, monkeypatch: pytest.MonkeyPatch, name: str, archive: bytes
) -> None:
    """A member of 600 MB was read into memory."""
    monkeypatch.setattr(download, "_LARGEST_FILE", 5)
    publish(name, archive)
    assert "train.txt has more than 0 MiB" in text_of(DataError, lambda: fetch("tiny"))


def test_no_answer(publish: Publish, tmp_path: Path, cache_folder: Path) -> None:
    publish()
    (tmp_path / "a.zip").unlink()
    text = text_of(DataError, lambda: fetch("tiny"))
    assert text.startswith(f"[data tiny] cannot download {(tmp_path / 'a.zip').as_uri()}: ")
    assert text.endswith(
        "; expected a network and an answer from there; try again, or get train.txt, dev.txt,"
        " test.txt by other means and give the path of their folder in place of the name."
    )
    assert not list((cache_folder / "data").iterdir())


def test_a_cache_that_cannot_be_written_or_is_open_to_others(
    publish: Publish, cache_folder: Path
) -> None:
    publish()
    cache_folder.mkdir()
    (cache_folder / "data").touch()
    text = text_of(DataError, lambda: fetch("tiny"))
    assert text.startswith(f"[data tiny] cannot write {cache_folder / 'data'}: ")
    assert text.endswith("set VERTEXRT_CACHE to another folder.")
    (cache_folder / "data").unlink()
    cache_folder.chmod(0o777)
    text = text_of(DataError, lambda: fetch("tiny"))
    assert "can be written by others (mode 777); expected a cache" in text
    assert not list(cache_folder.iterdir())


def test_the_catalogue(cache_folder: Path) -> None:
    entries = {(entry.name, entry.format): entry for entry in catalogue()}
    assert len(entries) == len(catalogue())
    assert [entry.name for entry in catalogue("trees")] == ["generated", "sst"]
    for entry in entries.values():
        assert entry.cached is (entry.source is None)
        assert entry.licence
        assert entry.home
        for checksum in entry.source.files.values() if entry.source else ():
            assert len(checksum) == 64
    assert text_of(UsageError, lambda: fetch("sstt")) == (
        "[data fetch] 'sstt'; these can be downloaded: sst, ptb; give one of them. Nearest: 'sst'."
    )
