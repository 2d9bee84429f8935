"""Downloads: checked, written under a temporary name, and clear about what went wrong."""

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vertexrt.config import config
from vertexrt.data import catalogue, download, load
from vertexrt.data.download import CatalogueEntry, Source, fetch
from vertexrt.errors import DataError, UsageError

TEXTS = {name: f"({n} word)\n".encode() for n, name in enumerate(("train", "dev", "test"))}

Publish = Callable[..., CatalogueEntry]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "cache"
    monkeypatch.setenv("VERTEXRT_CACHE", str(folder))
    config.cache_clear()
    yield folder
    config.cache_clear()


def zipped(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


FILES = {f"./trees/{name}.txt": text for name, text in TEXTS.items()} | {"readme": b"hello"}


@pytest.fixture
def publish(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Put an archive at an address and an entry `tiny` into the catalogue."""

    def put(archive: bytes, name: str = "a.zip", checksum: str | None = None) -> CatalogueEntry:
        (tmp_path / name).write_bytes(archive)
        files = {f"{split}.txt": sha256(text) for split, text in TEXTS.items()}
        source = Source((tmp_path / name).as_uri(), checksum, "trees", files)
        entry = CatalogueEntry("tiny", "trees", "three trees", "here", "none", source)
        monkeypatch.setattr(download, "downloaded", lambda: [entry])
        return entry

    return put


def only_whole_folders(cache: Path) -> bool:
    """Tell whether nothing half-made lies in the cache."""
    return [path.name for path in (cache / "data").iterdir()] in ([], ["tiny"])


@pytest.mark.parametrize(("pack", "name"), [(zipped, "a.zip"), (tarred, "a.tgz")])
def test_fetch_keeps_the_files(
    publish: Publish, cache: Path, pack: Callable[[dict[str, bytes]], bytes], name: str
) -> None:
    archive = pack(FILES)
    entry = publish(archive, name, sha256(archive))
    before = entry.cached
    assert fetch("tiny") == cache / "data" / "tiny" == entry.folder
    assert (before, entry.cached) == (False, True)
    kept = {path.name: path.read_bytes() for path in entry.folder.iterdir()}
    assert kept == {f"{split}.txt": text for split, text in TEXTS.items()}
    assert only_whole_folders(cache)
    assert load(entry.folder, format="trees").splits["dev"].num_graphs == 1


def test_fetch_once(publish: Publish, tmp_path: Path) -> None:
    entry = publish(zipped(FILES))
    fetch("tiny")
    (tmp_path / "a.zip").unlink()
    assert fetch("tiny") == entry.folder


def test_an_incomplete_folder_is_replaced(publish: Publish, cache: Path) -> None:
    entry = publish(zipped(FILES))
    entry.folder.mkdir(parents=True)
    (entry.folder / "dev.txt").write_text("half")
    assert (fetch("tiny") / "dev.txt").read_bytes() == TEXTS["dev"]
    assert only_whole_folders(cache)


def test_no_answer(publish: Publish, tmp_path: Path, cache: Path) -> None:
    entry = publish(zipped(FILES))
    (tmp_path / "a.zip").unlink()
    with pytest.raises(DataError) as caught:
        fetch("tiny")
    assert entry.source is not None
    text = str(caught.value)
    assert text.startswith(f"[data tiny] cannot download {entry.source.url}: ")
    assert text.endswith(
        "; expected a network and an answer from there; try again, or get train.txt, dev.txt,"
        " test.txt by other means and give the path of their folder in place of the name."
    )
    assert only_whole_folders(cache)


def test_wrong_checksum_of_the_archive(publish: Publish, cache: Path) -> None:
    archive = zipped(FILES)
    entry = publish(archive, checksum="0" * 64)
    with pytest.raises(DataError) as caught:
        fetch("tiny")
    assert entry.source is not None
    assert str(caught.value) == (
        f"[data tiny] {entry.source.url} has the sha256 {sha256(archive)}; expected {'0' * 64};"
        " nothing was kept; try again, or give the path of a folder that you trust."
    )
    assert only_whole_folders(cache)
    assert not entry.cached


def test_wrong_checksum_of_a_file(publish: Publish, cache: Path) -> None:
    publish(tarred(FILES | {"./trees/dev.txt": b"other"}), "a.tgz")
    with pytest.raises(DataError, match=rf"trees/dev\.txt has the sha256 {sha256(b'other')};"):
        fetch("tiny")
    assert only_whole_folders(cache)


@pytest.mark.parametrize("name", ["a.zip", "a.tgz"])
@pytest.mark.parametrize("cut", [10, 150])
def test_no_archive(publish: Publish, name: str, cut: int) -> None:
    archive = (zipped if name == "a.zip" else tarred)(FILES)
    publish(archive[:cut], name)
    with pytest.raises(
        DataError, match=rf"{name} gave no archive that can be read \(.*expected an"
    ):
        fetch("tiny")
    publish(b"<html>not found</html>", name)
    with pytest.raises(DataError, match=rf"{name} gave no archive that can be read"):
        fetch("tiny")


def marked(archive: bytes, place: int, value: int) -> bytes:
    """Change a byte of every member's header in a .zip; in its list it stands 2 bytes later."""
    data = bytearray(archive)
    for sign, offset in ((b"PK\x03\x04", place), (b"PK\x01\x02", place + 2)):
        at = data.find(sign)
        while at >= 0:
            data[at + offset] = value
            at = data.find(sign, at + 4)
    return bytes(data)


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        (6, 1, "is encrypted, password required"),
        (8, 97, "compression method is not supported"),
        (8, 12, "Invalid data stream"),  # it says bzip2
        (8, 14, "no archive that can be read"),  # it says LZMA
    ],
)
def test_an_archive_packed_in_another_way(
    place: int, value: int, text: str, publish: Publish
) -> None:
    publish(marked(zipped(FILES), place, value))
    with pytest.raises(DataError, match=text):
        fetch("tiny")


@pytest.mark.parametrize(("name", "pack"), [("a.zip", zipped), ("a.tgz", tarred)])
def test_a_file_that_is_too_large_is_not_unpacked(
    name: str,
    pack: Callable[[dict[str, bytes]], bytes],
    publish: Publish,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member of 600 MB was read into memory."""
    monkeypatch.setattr(download, "_LARGEST_FILE", 5)
    publish(pack(FILES), name)
    with pytest.raises(DataError, match=r"train.txt has more than 0 MiB"):
        fetch("tiny")
    assert list((cache / "data").iterdir()) == []


def test_a_kept_file_that_has_changed_is_fetched_again(publish: Publish) -> None:
    publish(zipped(FILES))
    damaged = fetch("tiny") / "dev.txt"
    damaged.write_bytes(b"(2 other)\n")
    assert (fetch("tiny") / "dev.txt").read_bytes() == TEXTS["dev"]


def test_archive_without_the_files(publish: Publish) -> None:
    publish(zipped({"trees/train.txt": TEXTS["train"]}))
    with pytest.raises(
        DataError, match=r"gave an archive without trees/dev\.txt, trees/test\.txt;"
    ):
        fetch("tiny")


def test_a_link_in_an_archive_is_no_file(publish: Publish) -> None:
    data, link = io.BytesIO(), tarfile.TarInfo("trees/train.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "readme"
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("readme"))
    publish(data.getvalue(), "a.tgz")
    with pytest.raises(DataError, match=r"an archive without trees/train\.txt,"):
        fetch("tiny")


def test_cache_that_cannot_be_written(publish: Publish, cache: Path) -> None:
    publish(zipped(FILES))
    cache.mkdir()
    (cache / "data").touch()
    with pytest.raises(DataError) as caught:
        fetch("tiny")
    assert str(caught.value).startswith(f"[data tiny] cannot write {cache / 'data'}: ")
    assert str(caught.value).endswith("set VERTEXRT_CACHE to another folder.")


def test_nothing_is_put_where_others_may_write(publish: Publish, cache: Path) -> None:
    publish(zipped(FILES))
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(DataError, match=r"can be written by others \(mode 777\); expected a cache"):
        fetch("tiny")
    assert not list(cache.iterdir())


def test_unknown_name() -> None:
    with pytest.raises(UsageError) as caught:
        fetch("sstt")
    assert str(caught.value) == (
        "[data fetch] 'sstt'; these can be downloaded: sst, ptb; give one of them. Nearest: 'sst'."
    )


def test_catalogue(cache: Path) -> None:
    entries = {(entry.name, entry.format): entry for entry in catalogue()}
    assert len(entries) == len(catalogue())
    assert [entry.name for entry in catalogue("trees")] == ["generated", "sst"]
    for entry in entries.values():
        assert entry.cached is (entry.source is None)
        assert entry.licence
        assert entry.home
    sst, ptb = entries["sst", "trees"].source, entries["ptb", "text"].source
    assert sst is not None
    assert ptb is not None
    assert sst.url == "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip"
    assert sst.sha256 is not None
    checksums = [*sst.files.values(), *ptb.files.values()]
    assert all(len(checksum) == 64 for checksum in [*checksums, sst.sha256])
    assert len(set(checksums)) == 6
