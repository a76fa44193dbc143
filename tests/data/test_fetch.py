"""Finding, checking and fetching files: from a server on this machine, never from the internet."""

from __future__ import annotations

import hashlib
import io
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedweave.core.settings import BadInput
from fedweave.data.fetch import Offer, data_root, fetch, locate, verify

CONTENT = b"the published file" * 1000
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


class Server(ThreadingHTTPServer):
    """Serves ``files``; ``/cut/NAME`` breaks off half-way, ``/length/NAME`` has a length that is no number."""

    files: dict[str, bytes]
    asked: list[str]

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        assert isinstance(server, Server)
        server.asked.append(self.path)
        body = server.files.get(self.path.rsplit("/", 1)[-1])
        if body is None:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", "abc" if self.path.startswith("/length/") else str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.path.startswith("/cut/") else body)
        return None

    def log_message(self, format: str, *args: object):
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv("FEDWEAVE_OFFLINE", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server(("127.0.0.1", 0), Handler) as httpd:
        httpd.files, httpd.asked = {"file.bin": CONTENT}, []
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        yield httpd
        httpd.shutdown()


def tar(**members: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name.replace("__", "/").replace("UP", ".."))
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def test_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("FEDWEAVE_DATA", "/from/env")
    assert data_root(tmp_path) == tmp_path
    assert data_root() == Path("/from/env")
    monkeypatch.delenv("FEDWEAVE_DATA")
    assert data_root() == Path.home() / ".cache/fedweave/data"


def test_a_missing_file_is_fetched_and_checked(server: Server, tmp_path: Path):
    root = tmp_path / "new" / "root"
    offer = Offer("a/file.bin", (server.url("file.bin"),), MD5)
    path = locate("made", {"a/file.bin": MD5}, offer, root)
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]
    locate("made", {"a/file.bin": MD5}, offer, root)
    assert len(server.asked) == 1  # it is there now


def test_the_mirror_is_tried_next(server: Server, tmp_path: Path):
    offer = Offer("file.bin", (server.url("gone.bin"), server.url("file.bin")), MD5)
    assert locate("made", {"file.bin": MD5}, offer, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cut/file.bin", f"broke off after {len(CONTENT) // 2} of {len(CONTENT)} bytes"),
        ("gone.bin", "404"),
        ("other.bin", "expected"),
    ],
)
def test_a_failed_download_leaves_nothing(server: Server, tmp_path: Path, name: str, reason: str):
    server.files["other.bin"] = b"something else"
    url, root = server.url(name), tmp_path / "root"
    with pytest.raises(BadInput, match=reason) as e:
        locate("made", {"a/file.bin": MD5}, Offer("a/file.bin", (url,), MD5), root)
    for part in ("made needs a/file.bin", str(root / "a/file.bin"), url, "FEDWEAVE_DATA"):
        assert part in str(e.value)
    assert list(tmp_path.iterdir()) == []


def test_no_network_and_unwritable_root_give_the_same_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("FEDWEAVE_OFFLINE", raising=False)
    with socket.socket() as free:  # a port where nobody listens
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/file.bin"
    offer = Offer("a/file.bin", (url,), MD5)
    with pytest.raises(BadInput, match=r"made needs a/file\.bin, which is missing"):
        locate("made", {"a/file.bin": MD5}, offer, tmp_path / "root")
    (tmp_path / "plain").write_text("a file cannot hold folders, not even for the superuser")
    with pytest.raises(BadInput, match=r"made needs a/file\.bin, which is missing"):
        locate("made", {"a/file.bin": MD5}, offer, tmp_path / "plain")
    assert [p.name for p in tmp_path.iterdir()] == ["plain"]


def test_offline_asks_nobody(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDWEAVE_OFFLINE", "1")
    with pytest.raises(BadInput, match="FEDWEAVE_OFFLINE forbids fetching"):
        locate("made", {"file.bin": MD5}, Offer("file.bin", (server.url("file.bin"),), MD5), tmp_path)
    assert server.asked == []


def test_a_corrupt_file_is_named_and_kept(server: Server, tmp_path: Path):
    (tmp_path / "file.bin").write_bytes(b"mine")
    found = hashlib.md5(b"mine").hexdigest()
    with pytest.raises(BadInput, match=f"MD5 is {found}, expected {MD5[4:]}"):
        locate("made", {"file.bin": MD5}, Offer("file.bin", (server.url("file.bin"),), MD5), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == b"mine"
    assert server.asked == []


def test_verify_knows_sha1_too(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"abc")
    verify(tmp_path / "f", "sha1:a9993e364706816aba3e25717850c26c9cd0d89d")  # FIPS 180, the example "abc"
    verify(tmp_path / "f", "")
    with pytest.raises(BadInput, match=r"SHA1 is a9993e36\w*, expected b9993e36"):
        verify(tmp_path / "f", "sha1:b9993e364706816aba3e25717850c26c9cd0d89d")


def test_an_archive_fills_in_what_is_missing(server: Server, tmp_path: Path):
    server.files["set.tar.gz"] = tar(set__one=b"1", set__two=b"2")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/one").write_bytes(b"mine")
    offer = Offer("", (server.url("set.tar.gz"),), archive=True)
    assert locate("made", {"set/two": ""}, offer, tmp_path).read_bytes() == b"2"
    assert (tmp_path / "set/one").read_bytes() == b"mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["set"]


def test_only_the_wanted_members_of_a_zip(server: Server, tmp_path: Path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as pack:
        pack.writestr("gzip/letters-x", b"x")
        pack.writestr("gzip/digits-x", b"y")
    server.files["gzip.zip"] = out.getvalue()
    offer = Offer("EM", (server.url("gzip.zip"),), archive=True, only="letters-")
    assert locate("made", {"EM/gzip/letters-x": ""}, offer, tmp_path).read_bytes() == b"x"
    assert [p.name for p in (tmp_path / "EM/gzip").iterdir()] == ["letters-x"]


def test_archives_cannot_write_outside(server: Server, tmp_path: Path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as pack:
        pack.writestr("../../evil", b"x")
    server.files |= {"evil.tar.gz": tar(UP__UP__evil=b"x"), "evil.zip": out.getvalue(), "broken.zip": b"PK"}
    for name in ("evil.tar.gz", "evil.zip", "broken.zip"):
        assert fetch(Offer("in", (server.url(name),), archive=True), tmp_path / "root")
    assert list(tmp_path.iterdir()) == []


def test_a_length_that_is_no_number(server: Server, tmp_path: Path):
    offer = Offer("file.bin", (server.url("length/file.bin"),), MD5)
    assert "of abc bytes" in fetch(offer, tmp_path)
    assert not list(tmp_path.iterdir())
