"""The app of ``fedweave flower new``, by Flower's own ``build``, ``new`` and the checks of ``app publish``."""

import io
import json
import os
import subprocess
import sys
import threading
import tomllib
import zipfile
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fedweave.fleet.local.new_app import write_app

ROOT = Path(__file__).parents[2]
NAME = "my-fleet"


def flwr(folder, *words, **variables):
    """Return what Flower's command prints; it calls nobody but this machine."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "NO_PROXY": "*", "HOME": str(folder)}
    program = [sys.executable, "-c", "from flwr.cli.app import app; app()", *map(str, words)]
    done = subprocess.run(
        program, cwd=folder, env=os.environ | quiet | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def app(tmp_path):
    write_app(tmp_path / NAME, "fedacs")
    return tmp_path / NAME


def build(app):
    """Return the bundle that ``flwr build`` makes of an app."""
    said = flwr(app.parent, "build", "--app", app)
    assert "missing" not in said, "a recommended property"
    (fab,) = app.parent.glob("*.fab")
    return fab


def test_flower_builds_a_bundle_that_says_what_it_holds(app):
    from flwr.cli.config_utils import get_fab_metadata

    fab = build(app)
    assert fab.name.startswith(f"me.{NAME}.0-1-0.")
    assert get_fab_metadata(fab) == (f"me/{NAME}", "0.1.0")
    with zipfile.ZipFile(fab) as file:
        held = {name: file.read(name) for name in file.namelist()}
    lines = [line.split(",") for line in held.pop(".info/CONTENT").decode().splitlines()]
    assert {name: digest for name, digest, _ in lines} == {n: sha256(c).hexdigest() for n, c in held.items()}
    ours = {
        str(p.relative_to(app)): p.read_bytes()
        for p in app.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts and p.name != ".gitignore"
    }
    assert held.keys() == ours.keys()
    assert {n: c for n, c in held.items() if n != "pyproject.toml"} == {
        n: c for n, c in ours.items() if n != "pyproject.toml"
    }, "Flower rewrites the settings"
    assert tomllib.loads(held["pyproject.toml"].decode()) == tomllib.loads(ours["pyproject.toml"].decode())
    assert held["LICENSE"] == (ROOT / "LICENSE").read_bytes()


def test_it_asks_for_the_flower_that_fedweave_works_with(app):
    def flowers(lines):
        return [one for line in lines if (one := Requirement(line)).name == "flwr"]

    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["flower"]
    its = tomllib.loads((app / "pyproject.toml").read_text())
    assert flowers(its["project"]["dependencies"]) == flowers(ours)
    assert its["tool"]["flwr"]["app"]["flwr-version-target"] in flowers(ours)[0].specifier


@pytest.fixture
def hub(app):
    """A stand-in for Flower's Hub that has the app as ``flwr app publish`` would send it; yield its address."""
    from flwr.cli.app_cmd.publish import _collect_file_paths, _validate_description, _validate_files

    files = _collect_file_paths(app)
    _validate_files(files)
    _validate_description(tomllib.loads((app / "pyproject.toml").read_text())["project"]["description"])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for path in files:
            file.write(path, path.relative_to(app.parent))

    class Hub(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert (self.path, asked["app_id"]) == ("/hub/fetch-zip", f"@me/{NAME}")
            self.answer(json.dumps({"zip_url": f"{address}/app.zip"}).encode())

        def do_GET(self):
            self.answer(packed.getvalue())

        def answer(self, content):
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield address
        server.shutdown()
        thread.join()


def test_what_flwr_new_downloads_is_the_same_app(app, hub, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    flwr(other, "new", f"@me/{NAME}", FLWR_SUPERGRID_API_URL=hub)
    assert build(other / NAME).read_bytes() == build(app).read_bytes()
