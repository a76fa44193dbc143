"""The page's server as a browser sees it: answers, events, refusals; and that folders stay as they are."""

import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import closing

import pytest

from fedweave.cli import root
from fedweave.cli import watch as command
from fedweave.cli.app import app
from fedweave.core.settings import BadInput
from fedweave.watch import server as server_module
from fedweave.watch.server import MOST_CHOSEN, Server
from watch.folders import SOURCE, Writer, accuracy, contents, made, many


def get(server, path, **headers):
    """Return the status, the headers and the content of an answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def ask(server, path):
    status, headers, content = get(server, path)
    assert status == 200
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    return json.loads(content)


class Events:
    """A stream of events, read as a browser does."""

    def __init__(self, server):
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        self._socket.sendall(f"GET /events HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n".encode())
        self._file = self._socket.makefile("rb")
        self.head = b"".join(iter(self._file.readline, b"\r\n"))

    def next(self):
        line = self._file.readline()
        assert line.startswith(b"data: "), line
        assert self._file.readline() == b"\n"
        return json.loads(line[6:])

    def until(self, true):
        """Return the first message for which ``true`` holds."""
        while not true(message := self.next()):
            pass
        return message

    def close(self):
        self._file.close()
        self._socket.close()


def test_the_page_and_its_files_come_from_here_alone(serve, tmp_path):
    server = serve(tmp_path)
    assert server.server_address[0] == "127.0.0.1"
    for path, kind in (("/", "html"), ("/page.js", "javascript"), ("/page.css", "css")):
        status, headers, content = get(server, path)
        assert status == 200
        assert headers["Content-Type"] == f"text/{kind}; charset=utf-8"
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers
        text = content.decode()
        assert not re.search(r"""(src|href|url\()\s*=?\s*["']?(https?:)?//""", text)
        assert "innerHTML" not in text
        assert "<script>" not in text


def test_runs_curves_and_clients(serve, tmp_path):
    made(tmp_path / "a", rounds=3)
    made(tmp_path / "b", rounds=2, planned=5)
    server = serve(tmp_path)
    found = ask(server, "/runs.json")
    assert not found["more"]
    assert [(run["name"], run["state"]) for run in found["runs"]] == [("a", "finished"), ("b", "stopped")]
    a, b = (run["key"] for run in found["runs"])
    curves = ask(server, f"/curves.json?run={a}&run={b}&run=nobody&metric=loss&axis=clock")
    assert curves[a] == {"x": [1.5, 3.0, 4.5], "y": [1 - accuracy(r) for r in (1, 2, 3)]}
    assert curves[b]["x"] == [1.5, 3.0]
    assert curves["nobody"] == {"problem": "There is no such run any more."}
    assert ask(server, f"/clients.json?run={a}")[a]["clients"] == 4


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404), ("/../etc/passwd", 404), ("/page.py", 404), ("/favicon.ico", 404),
        ("/curves.json?axis=nothing", 400), ("/clients.json?" + "&".join(f"run={i}" for i in range(99)), 400),
    ],
)  # fmt: skip
def test_what_is_not_there_is_a_sentence(serve, tmp_path, path, status):
    found, _, content = get(serve(tmp_path), path)
    assert found == status
    assert json.loads(content)["problem"].endswith(".")


def test_only_those_who_name_this_machine_are_answered(serve, tmp_path):
    server = serve(made(tmp_path / "a"))
    for host in (f"127.0.0.1:{server.port}", f"localhost:{server.port}"):
        assert get(server, "/runs.json", Host=host)[0] == 200
    for host in (
        "evil.example",
        f"evil.example:{server.port}",
        "127.0.0.1",
        f"127.0.0.1:{server.port}.evil.example",
        "",
    ):
        for path in ("/", "/runs.json", "/events"):
            status, _, content = get(server, path, Host=host)
            assert status == 403
            assert b"runs" not in content
    with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        connection.request("POST", "/runs.json")
        assert connection.getresponse().status == 501


def test_the_usual_port_is_left_out_by_browsers():
    assert server_module.hosts(80) == {"127.0.0.1:80", "localhost:80", "127.0.0.1", "localhost"}
    assert server_module.hosts(8377) == {"127.0.0.1:8377", "localhost:8377"}


def test_an_address_that_is_none_is_a_sentence(serve, tmp_path, capfd):
    server = serve(tmp_path)
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=60)) as connection:
        connection.sendall(f"GET http://[ HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n".encode())
        with connection.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 400")
    assert capfd.readouterr().err == ""


def test_a_browser_that_waits_for_the_page_gets_it(tmp_path, monkeypatch):
    servers, found = [], []

    class Kept(Server):
        def __init__(self, *words):
            super().__init__(*words)
            servers.append(self)

    def browse(url):
        try:
            with urllib.request.urlopen(url, timeout=20) as page:
                found.append(page.status)
        finally:
            threading.Thread(target=servers[0].shutdown).start()

    monkeypatch.setattr(command, "Server", Kept)
    monkeypatch.setattr(command.webbrowser, "open", browse)
    command.watch(tmp_path, port=0, open_=True)
    assert found == [200]


def test_events_say_what_is_new(serve, tmp_path):
    server = serve(tmp_path)
    events = Events(server)
    assert b"text/event-stream" in events.head
    assert events.next() == {"runs": [], "gone": [], "more": False, "all": True}
    with Writer(tmp_path / "run", rounds=3) as writer:
        writer("add 1", "save")
        row = events.until(lambda m: m["runs"] and m["runs"][0].get("round") == 1)["runs"][0]
        assert (row["name"], row["state"]) == ("run", "running")
        writer("add 2", "save", "close")
        events.until(lambda m: m["runs"] and m["runs"][0]["state"] == "finished")
    shutil.rmtree(tmp_path / "run")
    assert events.until(lambda m: m["gone"])["gone"] == [row["key"]]
    events.close()


def test_a_browser_that_leaves_ends_its_thread(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "MOST_STREAMS", 3)
    server = serve(tmp_path)
    before = threading.active_count()
    for _ in range(5):
        streams = [Events(server) for _ in range(3)]
        for stream in streams:
            stream.next()
        refused = Events(server)
        assert refused.head.startswith(b"HTTP/1.1 503")
        for stream in (*streams, refused):
            stream.close()
        end = time.monotonic() + 60
        while threading.active_count() > before:
            assert time.monotonic() < end, threading.enumerate()
            time.sleep(0.01)


@pytest.mark.parametrize(("words", "said"), [([], "Watching"), (["-q"], ""), (["--quiet", "--json"], '{"url"')])
def test_quiet_leaves_the_address_out_unless_json_is_asked_for(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Server, "serve_forever", lambda _: None)
    with pytest.raises(SystemExit, match="0"):
        app(["watch", str(tmp_path), "--port", "0", *words])
    assert capsys.readouterr().out.partition(" ")[0].rstrip(":") == said


def test_nothing_in_a_folder_is_written_while_runs_are_watched(serve, tmp_path):
    made(tmp_path / "done", rounds=30)
    with Writer(tmp_path / "killed") as killed:
        killed("add 2", "save")
    with Writer(tmp_path / "run") as writer:
        writer("add 2", "save", "add 1")
        before = contents(tmp_path)
        server = serve(tmp_path)
        events = Events(server)
        rows = {row["name"]: row for row in events.next()["runs"]}
        assert {name: row["state"] for name, row in rows.items()} == {
            "done": "finished", "killed": "failed", "run": "running",
        }  # fmt: skip
        for row in rows.values():
            assert ask(server, f"/curves.json?run={row['key']}")[row["key"]]["x"]
            assert ask(server, f"/clients.json?run={row['key']}")[row["key"]]["asked"]
        assert contents(tmp_path) == before
        writer("add 1", "save")
        events.until(lambda m: [row["round"] for row in m["runs"]] == [4])
        writer("close")
        events.until(lambda m: [row["state"] for row in m["runs"]] == ["stopped"])
        events.close()
    here = {name: stamp for name, stamp in contents(tmp_path).items() if not name.startswith("run")}
    assert here == {name: stamp for name, stamp in before.items() if not name.startswith("run")}
    assert sorted(os.listdir(tmp_path / "run")) == [
        ".lock", "experiment.json", "manifest.json", "run.sqlite", "state-000002.safetensors",
        "state-000004.safetensors",
    ]  # fmt: skip


MARKUP = "<img src=x onerror=alert(1)>"
HOSTILE = {
    "no database": lambda f: (f / "run.sqlite").write_bytes(b""),
    "noise": lambda f: (f / "run.sqlite").write_bytes(random.Random(0).randbytes(5000)),
    "half a database": lambda f: (f / "run.sqlite").write_bytes((f / "run.sqlite").read_bytes()[:5000]),
    "no experiment": lambda f: (f / "experiment.json").unlink(),
    "deep": lambda f: (f / "experiment.json").write_text("[" * 100_000),
    "a method that is no name": lambda f: _edit(f, "experiment.json", method={"name": "../up"}),
    "a huge file": lambda f: os.truncate(f / "manifest.json", 2**40),
    "a link": lambda f: ((f / "manifest.json").unlink(), (f / "manifest.json").symlink_to("/etc/passwd")),
    "a pipe": lambda f: ((f / "experiment.json").unlink(), os.mkfifo(f / "experiment.json")),
    "a trigger": lambda f: _sql(f, "CREATE TRIGGER t AFTER DELETE ON rounds BEGIN SELECT 1; END"),
    "a view": lambda f: _sql(f, "DROP TABLE rounds", "CREATE VIEW rounds AS SELECT 1 AS round"),
    "text for a number": lambda f: _sql(f, f"UPDATE rounds SET clock = '{MARKUP}'"),
    "bytes for a round": lambda f: _sql(f, "UPDATE clients SET client = x'00' WHERE received = 1"),
    "an endless client": lambda f: _sql(f, "UPDATE clients SET client = 9223372036854775807 WHERE received = 1"),
    "a wrong plan": lambda f: ((f / "run.sqlite").rename(f / "x"), (f / "experiment.json").rename(f / "compare.json")),
    "an unknown length": lambda f: _sql(f, "INSERT INTO extension VALUES (-1)"),
}


def _edit(folder, name, **changes):
    (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | changes))


def _sql(folder, *statements):
    with closing(sqlite3.connect(folder / "run.sqlite")) as db, db:
        for statement in statements:
            db.execute(statement)


def test_hostile_folders_are_a_sentence_in_the_list(serve, tmp_path):
    for name, strike in HOSTILE.items():
        strike(made(tmp_path / name, rounds=3))
    (tmp_path / "a link to all").symlink_to(tmp_path)
    made(tmp_path / "good")
    before = contents_without_pipes(tmp_path)
    server = serve(tmp_path)
    rows = {row["name"]: row for row in ask(server, "/runs.json")["runs"]}
    assert rows.keys() == {*HOSTILE, "good"}
    assert rows["good"]["state"] == "finished"
    for name in HOSTILE:
        row, key = rows[name], rows[name]["key"]
        curve = ask(server, f"/curves.json?run={key}&axis=clock")[key]
        part = ask(server, f"/clients.json?run={key}")[key]
        problem = (row["note"] if row["state"] == "failed" else "") or curve.get("problem") or part.get("problem")
        assert problem, name
        assert "\n" not in problem
        assert len(problem) < 1000
        assert problem.endswith(".")
    assert contents_without_pipes(tmp_path) == before


def test_nothing_in_a_folder_is_imported(serve, tmp_path, monkeypatch):
    folder = made(tmp_path / "a", data="evil_part:load", type="evil_part:Part")
    _edit(
        folder,
        "experiment.json",
        method={"name": "fedavg", "type": "evil_part:Part", "sampler": {"type": "evil_part:x"}},
    )
    _edit(folder, "manifest.json", plugins={"evil_part:Part": "x"})
    (folder / "evil_part.py").write_text("raise SystemExit")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    assert ask(serve(folder), "/runs.json")["runs"][0]["state"] == "finished"
    assert "evil_part" not in sys.modules


def contents_without_pipes(folder):
    """A huge file is not read, and a pipe would wait."""
    return {
        str(p.relative_to(folder)): (p.lstat().st_mtime_ns, p.lstat().st_ino, p.lstat().st_size)
        for p in folder.rglob("*")
    }


def test_two_hundred_runs(serve, tmp_path):
    names = many(tmp_path, 200, rounds=20)
    server = serve(tmp_path)
    events = Events(server)
    message = events.next()
    events.close()
    assert [row["name"] for row in message["runs"]] == names
    assert {row["state"] for row in message["runs"]} == {"finished"}
    chosen = "&".join(f"run={row['key']}" for row in message["runs"][:MOST_CHOSEN])
    curves = ask(server, f"/curves.json?{chosen}")
    assert len(curves) == MOST_CHOSEN
    assert all(len(curve["x"]) == 20 for curve in curves.values())


def test_a_list_that_is_too_long_says_so(serve, tmp_path, monkeypatch):
    for name in "abc":
        made(tmp_path / name)
    monkeypatch.setattr("fedweave.watch.find.MOST_RUNS", 2)
    found = ask(serve(tmp_path), "/runs.json")
    assert found["more"]
    assert [row["name"] for row in found["runs"]] == ["a", "b"]


def test_kept_curves_are_bounded(serve, tmp_path, monkeypatch):
    monkeypatch.setattr("fedweave.watch.catalog.KEPT_CURVES", 2)
    made(tmp_path / "a", rounds=3)
    server = serve(tmp_path)
    key = ask(server, "/runs.json")["runs"][0]["key"]
    for metric in ("accuracy", "loss", "train_loss", "accuracy", "diversity"):
        assert ask(server, f"/curves.json?run={key}&metric={metric}")[key]["x"] == [1, 2, 3]
    assert len(server.catalog._curves._entries) == 2


def test_wrong_folders_and_ports_are_a_sentence(tmp_path, monkeypatch):
    with pytest.raises(BadInput, match=r"^There is no folder '.*nowhere'\.$"):
        Server([tmp_path / "nowhere"])
    with (
        Server([tmp_path]) as taken,
        pytest.raises(BadInput, match=rf"Port {taken.port} cannot be used: Address already"),
    ):
        Server([tmp_path], taken.port)
    with pytest.raises(BadInput, match="between 0 and 65535"):
        command.watch(tmp_path, port=70_000)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="There is no folder 'runs' here"):
        command.watch()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_interrupted(tmp_path, number):
    made(tmp_path / "runs/a")
    words = [sys.executable, "-m", "fedweave", "watch", "--port", "0", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    program = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    )
    assert program.stdout
    port = json.loads(program.stdout.readline())["port"]
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("GET", "/runs.json")
        assert [run["name"] for run in json.load(connection.getresponse())["runs"]] == ["a"]
        program.send_signal(number)
        assert program.communicate() == ("", "")
    assert program.returncode == 0


def test_the_page_needs_neither_torch_nor_matplotlib():
    code = "import sys, fedweave.cli.watch; sys.exit(bool({'torch', 'matplotlib', 'scipy'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_help_has_an_example(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedweave", "watch", "--help"])
    with pytest.raises(SystemExit) as ended:
        root.main()
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "Example: fedweave watch runs" in text
    assert all(option in text for option in ("--port", "--open", "--json"))
