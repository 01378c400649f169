"""Downloads from a server on this machine: whole and checked, or one sentence and nothing left behind."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from trellis.config import DataConfig
from trellis.corpus import load_corpus, sources
from trellis.corpus.download import download
from trellis.errors import TrellisError

CONTENT = b"the cat sat\n" * 10_000
SUM = hashlib.sha256(CONTENT).hexdigest()


def zipped(name: str) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(name, "the cat sat on a mat " * 100)
    return archive.getvalue()


FILES = {"/truncated": CONTENT[:5000], "/text8.zip": zipped("text8"), "/other.zip": zipped("other")}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404 if self.path == "/missing" else 200)
        content = FILES.get(self.path, CONTENT)
        self.send_header("Content-Length", str(len(CONTENT if self.path == "/truncated" else content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_text8_comes_out_of_its_archive(server: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRELLIS_DATA", raising=False)
    for name in ("/other.zip", "/text8.zip"):
        address = f"{server}{name}", hashlib.sha256(FILES[name]).hexdigest()
        monkeypatch.setattr(sources, "TEXT8", address)
        if name == "/other.zip":
            with pytest.raises(TrellisError, match="does not contain text8"):
                load_corpus(DataConfig("text8"), cache)
    corpus = load_corpus(DataConfig("text8"), cache)
    assert sum(split.tokens.size for split in corpus.splits.values()) == 600 + 3
    assert sorted(path.name for path in (cache / "sources" / "text8").iterdir()) == ["checksums.json", "text8"]


def test_a_good_download_is_the_whole_file(server: str, tmp_path: Path) -> None:
    download(f"{server}/good", SUM, tmp_path / "new" / "file")
    assert (tmp_path / "new" / "file").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("path", "checksum", "message"),
    [
        ("good", "0" * 64, "SHA-256 checksum differs"),
        ("truncated", SUM, "stopped after 5,000 of 120,000 bytes"),
        ("missing", SUM, "Cannot download .*missing: Not Found"),
    ],
)
def test_a_bad_download_leaves_nothing(server: str, tmp_path: Path, path: str, checksum: str, message: str) -> None:
    with pytest.raises(TrellisError, match=message):
        download(f"{server}/{path}", checksum, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_refused_connection(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as closed:
        port = closed.server_port
    with pytest.raises(TrellisError, match=r"Cannot download .*refused.*TRELLIS_DATA"):
        download(f"http://127.0.0.1:{port}/", SUM, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_named_corpus_is_downloaded_once(server: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRELLIS_DATA", raising=False)
    good = dict.fromkeys(sources.SPLITS, (f"{server}/good", SUM))
    monkeypatch.setitem(sources.DOWNLOADS, "ptb", good)
    corpus = load_corpus(DataConfig("ptb"), cache)
    assert corpus["test"].tokens.size == 40_000
    monkeypatch.setitem(sources.DOWNLOADS, "ptb", dict.fromkeys(sources.SPLITS, (f"{server}/missing", SUM)))
    assert load_corpus(DataConfig("ptb"), cache).description == corpus.description
