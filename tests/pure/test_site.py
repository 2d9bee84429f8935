"""The site of the documents: every public name is on it, and a browser reads it as a person does.

What has no docstring is not shown, so each public name has one.

Where there is no Chromium, the tests that need it are skipped.
"""

import contextlib
import functools
import http.client
import json
import re
import runpy
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES: dict[str, str] = runpy.run_path(str(ROOT / "docs" / "conf.py"))["examples"]()
MODULES = [n for n in vrt.__all__ if getattr(vrt, n).__class__.__name__ == "module"]
MODULES.append("data.edges")

# Called by the engine, not by users; the fields of tuples, which the examples of these read.
WITHOUT_EXAMPLE = {
    "vrt.errors.VertexrtError.at",
    "vrt.errors.VertexrtError.moved",
    "vrt.data.Embeddings.matrix",
    "vrt.data.Embeddings.share",
    "vrt.data.Examples.batch",
    "vrt.data.Examples.vocabularies",
    *(f"vrt.types.Generated.{name}" for name in vrt.types.Generated._fields),
}
# Classes of which users see objects that others make, or whose children they use; calls.
RETURNED = {
    "vrt.types.Checkpoint",
    "vrt.types.Gradients",
    "vrt.types.Loss",
    "vrt.Network",
    "vrt.Network.__call__",
    "vrt.Decoder.__call__",
    "vrt.types.Outputs",
    "vrt.types.Plan.__call__",
    "vrt.types.Record",
    "vrt.data.Dataset",
    "vrt.data.Embeddings",
    "vrt.data.Examples",
    "vrt.parallel.ProcessGroup",
}
PHONE = 390  # pixels


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, for which a warning is an error."""
    pytest.importorskip("sphinx", reason="the site needs the extra `docs`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", ROOT / "docs", folder]
    done = subprocess.run([*command, "-d", folder / "kept"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


class Browser:
    """Headless Chromium, asked by the WebDriver protocol (W3C, 2018)."""

    def __init__(self, driver: str, folder: Path, address: str) -> None:
        self.process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        started = (re.search(r"started .* port (\d+)", line) for line in self.process.stdout)
        self.port = int(next(found[1] for found in started if found))
        self.address, self.session = address, ""
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        flags += ["--no-first-run", "--disable-sync", f"--user-data-dir={folder}"]
        wanted = {"alwaysMatch": {"goog:chromeOptions": {"args": flags}}}
        self.session = "/" + self.ask("", capabilities=wanted)["sessionId"]

    def ask(self, path: str, method: str = "POST", **body: Any) -> Any:
        """Send a command of the protocol, and return its value."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            data = json.dumps(body) if method == "POST" else None
            connection.request(method, "/session" + self.session + path, data)
            with connection.getresponse() as answer:
                value = json.load(answer)["value"]
        assert answer.status == 200, value
        return value

    def open(self, page: str) -> None:
        """Go to a page of the site, which is loaded when this returns."""
        self.ask("/url", url=self.address + page)

    def run(self, script: str) -> Any:
        """Return what JavaScript returns; a promise is waited for."""
        return self.ask("/execute/sync", script=script, args=[])

    def set(self, command: str, **params: Any) -> None:
        """Send a command of Chromium's own protocol."""
        self.ask("/goog/cdp/execute", cmd=command, params=params)


class Silent(SimpleHTTPRequestHandler):
    """Serves files and says nothing of it."""

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def browser(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    driver = shutil.which("chromedriver")
    if driver is None or shutil.which("chromium") is None:
        pytest.skip("there is no browser: chromium and chromedriver are not installed")
    handler = functools.partial(Silent, directory=str(site))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    opened = Browser(driver, tmp_path_factory.mktemp("browser"), address)
    yield opened
    opened.ask("", method="DELETE")
    opened.process.terminate()
    opened.process.communicate()
    server.shutdown()
    server.server_close()


def names_on(site: Path) -> set[str]:
    """Return the names that the pages of the interface describe, as users write them."""
    pages = (page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    found = {name for page in pages for name in re.findall(r'<dt [^>]*\bid="([\w.]+)"', page)}
    return {name.replace("vertexrt.", "vrt.", 1) for name in found}


def test_every_public_name_is_on_the_site_and_has_an_example(site: Path) -> None:
    names = [f"vrt.{name}" for name in vrt.__all__ if name not in MODULES]
    for module in MODULES:
        names += [f"vrt.{module}.{name}" for name in attrgetter(module)(vrt).__all__]
    names.remove("vrt.data.edges")
    shown = names_on(site)
    assert set(names) <= shown
    assert shown - set(EXAMPLES) == WITHOUT_EXAMPLE
    assert set(EXAMPLES) - shown == {"given"}
    unnamed = {n for n in shown & set(EXAMPLES) if n.rpartition(".")[2] not in EXAMPLES[n]}
    assert unnamed == RETURNED


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, object] = {"__name__": "examples"}
    for number, code in enumerate(dict.fromkeys(EXAMPLES.values())):
        path = tmp_path / f"example_{number}.py"  # a file, so that messages can show its lines
        path.write_text(code, encoding="utf-8")
        exec(compile(code, str(path), "exec"), names)


def test_links_lead_somewhere_and_pages_fit_a_phone(browser: Browser) -> None:
    browser.set(
        "Emulation.setDeviceMetricsOverride",
        width=PHONE, height=844, deviceScaleFactor=1, mobile=True,
    )  # fmt: skip
    sections: dict[str, set[str]] = {}
    links: set[tuple[str, str]] = set()
    queue = ["index.html"]
    while queue:
        page = queue.pop()
        if page in sections:
            continue
        browser.open(page)
        width, ids, targets, broken, missing = browser.run(
            """const all = (tag) => [...document.querySelectorAll(tag)];
            return [document.documentElement.scrollWidth, all("[id]").map((e) => e.id),
            all("a[href]").map((e) => e.href),
            all("img").filter((e) => e.complete && !e.naturalWidth).map((e) => e.src),
            document.title.includes("Error response")];"""
        )
        assert not missing, page
        assert width <= PHONE, f"{page} is {width} pixels wide"
        assert not broken, f"{page} shows what is not there"
        sections[page] = set(ids)
        inside = [link for link in targets if link.startswith(browser.address)]
        for link in inside:
            path, _, section = link.removeprefix(browser.address).partition("#")
            path = path.partition("?")[0] or "index.html"
            links.add((path, section))
            if path.endswith(".html"):
                queue.append(path)
    browser.set("Emulation.clearDeviceMetricsOverride")
    assert len(sections) > 30
    lost = {link for link in links if link[1] and link[1] not in sections.get(link[0], {link[1]})}
    assert not lost
    assert "guide/first-network.html" in sections


def test_search_finds_pages(browser: Browser) -> None:
    browser.open("search.html?q=frontier")
    found = browser.run(
        """return new Promise((done) => {
            const look = () => {
                const hits = [...document.querySelectorAll("ul.search a")].map((e) => e.href);
                return hits.length ? done(hits) : setTimeout(look, 50);
            };
            look();
        });"""
    )
    assert any("architecture" in link for link in found)


def test_a_copied_block_runs(browser: Browser, tmp_path: Path) -> None:
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    browser.set("Browser.grantPermissions", permissions=permissions)
    browser.open("index.html")
    css = "div.highlight-python button.copybtn"
    names: dict[str, Any] = {}
    for number, button in enumerate(browser.ask("/elements", using="css selector", value=css)):
        show = f"document.querySelectorAll('{css}')[{number}].scrollIntoView"
        browser.run(f"{show}({{block: 'center', behavior: 'instant'}});")
        (element,) = button.values()
        browser.ask(f"/element/{element}/click")
        code = browser.run("return navigator.clipboard.readText();")
        path = tmp_path / f"block_{number}.py"  # a file, so that messages can show its lines
        path.write_text(code, encoding="utf-8")
        exec(compile(code, str(path), "exec"), names)
    assert np.isfinite(float(names["loss"]))
