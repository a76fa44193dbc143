"""Run folders from somebody else: whatever is in them, only errors that are declared, and nothing outside is touched.

Every folder is a real one with one to three changes, in any of its files: types and nesting of JSON, values in the
database, links, files that are missing or too many. What a command opens, removes, renames or imports is watched.
"""

import hashlib
import itertools
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit
from zoneinfo import TZPATH

import matplotlib
import numpy as np
import pytest
from fleet import THOROUGH, WORLD
from safetensors.numpy import load, save

import fedweave
from fedweave import report
from fedweave.cli import app as cli
from fedweave.cli import verify
from fedweave.cli.options import experiments_of
from fedweave.core import plugins
from fedweave.core.settings import BadInput
from fedweave.runs.compare import compare
from fedweave.tables.files import NotStored, open_inside
from fedweave.watch.catalog import Catalog
from interrupt import StopAfter

FOLDERS, BATCH = (1000, 20) if THOROUGH else (200, 50)
COMMANDS = {
    "resume": lambda folder: cli.resume(folder),
    "report": lambda folder: cli.report(folder, json=True),
    "export": lambda folder: cli.export(folder),
    "verify": lambda folder: verify.command(folder),
    "watch": lambda folder: look_at(folder),
}
EVIL = "import sys\nsys.modules['evil_part_was_imported'] = sys\n"  # whatever becomes of the module itself
VICTIM = "victim.txt"  # a file outside, which links and names lead to
PATHS = [f"../{VICTIM}", f"../../{VICTIM}", "/etc/passwd", "..", ".", "", "a/b", "\x00", "x" * 300, "~", "evil_part"]
PATHS += ["os:system", "os:abort", "antigravity:x", "evil_part:x", "../evil:x", "fedweave.runs.loop:run", "sys:modules"]
JSON = [None, True, -1, 0, 7, 2**70, 1e308, float("nan"), float("inf"), "", "text", "\ud800", "\x1b[2J", [], {}, [[]]]
JSON += [[None], {"type": "evil_part:Part"}, {"type": "Uniform"}, {"type": None}, {"name": []}, *PATHS]
JSON += [{"type": "os:abort"}]
SQL = ["NULL", "-1", "0", "7", "9223372036854775807", "1e308", "9e999", "'text'", "x'00ff'", "'[1]'", "''", "'[[]]'"]
SQL += [f"'../{VICTIM}'", f"'../../{VICTIM}'", "'" + "[" * 3000 + "'", "'state-000001.safetensors'", "char(27)"]
TABLES = ["rounds", "clients", "failures", "measures", "audit", "states"]
KINDS = ["json", "json", "json", "text", "sql", "sql", "sql", "schema", "link", "link", "missing", "extra", "bytes"]
KINDS += ["state", "agreed", "audit"]


def look_at(folder):
    """Do what the live page does: a sentence about a run is part of the list, and never ends it."""
    catalog = Catalog([folder], seconds=0)
    rows, keys, _ = catalog.changes({})
    found = [catalog.curves(list(keys), "accuracy", "clock"), catalog.clients(list(keys))]
    problems = [row["note"] for row in rows if row["state"] == "failed"]
    problems += [answer["problem"] for answers in found for answer in answers.values() if "problem" in answer]
    json.dumps([rows, found], allow_nan=False)
    if problems:
        raise BadInput(*problems)


@pytest.fixture(scope="module", autouse=True)
def plain_page():
    """Drawing takes most of the time: pages are drawn when everything is tried."""
    with pytest.MonkeyPatch.context() as patch:
        if not THOROUGH:
            patch.setattr(report, "page", lambda results: "".join(map(repr, results)))
        yield


@pytest.fixture(scope="module")
def original(tmp_path_factory, plain_page):
    """A comparison of two methods that was interrupted in its second run, with tables, states and an audit log."""
    base = tmp_path_factory.mktemp("original")
    experiments, _ = experiments_of(["fedavg", "scaffold"], {**WORLD, "rounds": "3"})
    with pytest.raises(KeyboardInterrupt):
        compare([e.method for e in experiments], experiments[0], 1, base / "c", StopAfter(2, "scaffold"))
    for run in (base / "c").iterdir():
        if run.is_dir():
            with closing(sqlite3.connect(run / "run.sqlite")) as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copytree(base / "c", base / "honest")
    for command in reversed(COMMANDS.values()):  # all libraries that an honest folder needs are loaded
        command(base / "honest")
    return base / "c"


def agree(folder, run, plain):
    """Put another experiment in the place of a run's in all three files."""
    before = json.loads((run / "experiment.json").read_text())
    for file in (run / "experiment.json", run / "manifest.json", folder / "compare.json"):
        found = json.loads(file.read_text())
        nodes = [found] if file.name == "experiment.json" else []
        nodes += [found["experiment"]] if "experiment" in found else list(found.get("runs", {}).values())
        for node in nodes:
            if json.dumps(node) == json.dumps(before):
                node.clear()
                node.update(plain)
        file.write_text(json.dumps(found))


class Vandal:
    """Changes one folder, at random but the same way each time."""

    def __init__(self, seed, folder):
        self.rng, self.folder = random.Random(seed), folder
        self.runs = [folder / name for name in ("fedavg-seed0", "scaffold-seed0")]

    def strike(self):
        for n in range(self.rng.choice([1, 1, 1, 2, 3])):
            kind = self.rng.choice(KINDS)
            with suppress(Exception if n else sqlite3.Error):  # a later change may find nothing that it could change
                getattr(self, kind)(self.rng.choice(self.runs))
            if kind == "link":  # and whatever follows one would strike the victim itself
                break

    def any_file(self, run):
        files = [*run.iterdir(), self.folder / "compare.json"]
        return self.rng.choice(sorted(file for file in files if file.is_file() and file.suffix != ".py"))

    def any_json(self):
        value = self.rng.choice(JSON)
        for _ in range(self.rng.choice([0, 0, 0, 1, 45, 60, 400])):
            value = self.rng.choice([[value], {"type": value}])
        return value

    def put(self, node):
        """Put any value in any place of a tree."""
        while True:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            if not keys:
                return
            key = self.rng.choice(keys)
            if isinstance(node[key], dict | list) and node[key] and self.rng.random() < 0.7:
                node = node[key]
                continue
            way = self.rng.random()
            if way < 0.7:
                node[key] = self.any_json()
            elif way < 0.85 and isinstance(node, dict):
                del node[key]
            elif isinstance(node, dict):
                node[self.rng.choice(PATHS)] = node.pop(key)
            return

    def json(self, run):
        file = self.rng.choice([run / "experiment.json", run / "manifest.json", self.folder / "compare.json"])
        content = json.loads(file.read_text())
        self.put(content)
        file.write_text(json.dumps(content))

    def text(self, run):
        """Put another document in the place of a file."""
        file = self.rng.choice([run / "experiment.json", run / "manifest.json", self.folder / "compare.json"])
        file.write_text(self.rng.choice([json.dumps(self.any_json()), "", "{", "[" * 100_000, "\xff", "9" * 5000]))

    def agreed(self, run):
        """Change the experiment in all three files alike, so that they agree."""
        plain = json.loads((run / "experiment.json").read_text())
        self.put(plain)
        if plain.get("rounds") not in (None, 3) or plain.get("pool") == "ray":
            return  # a real experiment, which would take long
        agree(self.folder, run, plain)

    def sql(self, run):
        table = self.rng.choice(TABLES)
        with closing(sqlite3.connect(run / "run.sqlite")) as db, db:
            columns = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")]
            where = self.rng.choice(["", "WHERE rowid = 1", "WHERE rowid = (SELECT max(rowid) FROM " + table + ")"])
            if self.rng.random() < 0.25:
                db.execute(f"DELETE FROM {table} {where}")
            elif self.rng.random() < 0.3:
                values = ", ".join(self.rng.choice(SQL) for _ in columns)
                db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({values})")
            else:
                db.execute(f"UPDATE {table} SET {self.rng.choice(columns)} = {self.rng.choice(SQL)} {where}")

    def schema(self, run):
        table = self.rng.choice(TABLES)
        endless = "WITH RECURSIVE n(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM n) SELECT a FROM n"
        with closing(sqlite3.connect(run / "run.sqlite")) as db:
            db.executescript(
                self.rng.choice(
                    [
                        f"DROP TABLE {table}",
                        f"DROP TABLE {table}; CREATE TABLE {table} (round)",
                        f"DROP TABLE {table}; CREATE VIEW {table} AS {endless}",
                        f"ALTER TABLE {table} ADD COLUMN more",
                        f"ALTER TABLE {table} RENAME TO others",
                        f"CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM states; END",
                        f"CREATE TABLE more AS {endless} LIMIT 3",
                    ]
                )
            )

    def link(self, run):
        place = self.rng.choice([*sorted(run.iterdir()), run, self.folder / "compare.json", run / "audit.jsonl"])
        place = self.rng.choice([place, run / ".lock", run / "run.sqlite-wal", run / "run.sqlite-journal"])
        place = self.rng.choice([place, run / "rounds.csv", run / ".rounds.csv.tmp", self.folder / ".report.html.tmp"])
        target = self.folder.parent / self.rng.choice([VICTIM, "copy", "nowhere", "pipe"])
        if place.is_dir():
            if not target.exists():
                shutil.copytree(place, target)
            shutil.rmtree(place)
        elif place.exists() or place.is_symlink():
            place.unlink()
        if target.name == "pipe":
            os.mkfifo(place)
        elif target.is_file() and self.rng.random() < 0.3:
            os.link(target, place)
        else:
            place.symlink_to(target)

    def missing(self, run):
        self.any_file(run).unlink()

    def extra(self, run):
        name = self.rng.choice([".lock", "run.sqlite-journal", "run.sqlite-wal", "run.sqlite-shm", "rounds.csv", "x"])
        name = self.rng.choice([name, "state-000009.safetensors", ".state-000003.safetensors.tmp", "audit.jsonl"])
        if self.rng.random() < 0.5:
            (run / name).unlink(missing_ok=True)
            (run / name).mkdir()
        else:
            (run / name).write_bytes(self.rng.choice([b"", os.path.abspath(__file__).encode(), b"\0" * 5000]))

    def bytes(self, run):
        file = self.any_file(run)
        content = bytearray(file.read_bytes())
        for _ in range(self.rng.randint(1, 4)):
            at = self.rng.randrange(len(content) or 1)
            content[at : at + self.rng.randint(0, 20)] = self.rng.randbytes(self.rng.randint(0, 20))
        file.write_bytes(content)

    def state(self, run):
        """Forge a state, with its digest in the database."""
        file = self.rng.choice(sorted(run.glob("state-*")))
        content = file.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header, arrays = json.loads(content[8 : 8 + size])["__metadata__"], load(content)
        way, key = self.rng.randrange(4), self.rng.choice(sorted(arrays))
        if way == 0:
            rows = np.atleast_1d(arrays[key])
            arrays[key] = self.rng.choice([np.zeros(3), np.zeros((2, 2), int), rows[:1], rows[:0]])
        elif way == 1:
            arrays[self.rng.choice([f"server.../{VICTIM}", "x", "clients.x", "nothing.x"])] = arrays.pop(key)
        elif way == 2:
            name = self.rng.choice(sorted(header))
            header[name] = self.rng.choice(["", "7", "-1", "nan", "null", "[]", '{"clients.memory": {"dim": 1e9}}'])
        elif f"{key.partition('/')[0]}/slot" in arrays:
            arrays[f"{key.partition('/')[0]}/slot"] += self.rng.choice([2**50, -7, 1])
        forged = save(arrays, header)
        file.write_bytes(forged)
        with closing(sqlite3.connect(run / "run.sqlite")) as db, db:
            sha = hashlib.sha256(forged).hexdigest()
            db.execute("UPDATE states SET sha256 = ? WHERE file = ?", (sha, file.name))

    def audit(self, run):
        file = run / "audit.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        at = self.rng.randrange(len(lines))
        lines[at] = self.rng.choice(
            [b"", b"null\n", b"[" * 5000 + b"\n", lines[at].replace(b"accepted", b"lost"), b"\n"]
        )
        file.write_bytes(b"".join(lines))


watched: list[tuple[str, str]] | None = None  # while a command runs: what it does, and to what
WRITES = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree"}
WRITES |= {"os.chmod", "shutil.move", "shutil.copyfile"}
_hooked = False


def hook(event, args):
    if watched is None:
        return
    if event == "open" and isinstance(args[0], str | bytes):
        name, flags = os.fsdecode(args[0]), args[2] or 0
        what = "write" if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) else "read"
        itself = flags & os.O_NOFOLLOW or sys._getframe(1).f_code is open_inside.__code__  # which refuses links itself
        watched.append((what, led_to(name, bool(itself))))
    elif event in WRITES:
        watched.extend(("write", os.fsdecode(a)) for a in args[:2] if isinstance(a, str | bytes))
    elif event == "sqlite3.connect" and args[0] != ":memory:":  # SQLite opens its files itself, and says nothing
        place = os.fsdecode(args[0])
        watched.append(("sqlite", led_to(unquote(urlsplit(place).path) if place.startswith("file:") else place)))
    elif event in ("os.listdir", "os.scandir") and isinstance(args[0], str | bytes):
        watched.append(("read", os.fsdecode(args[0])))
    elif event.startswith(("subprocess", "socket.connect", "os.exec", "os.fork", "os.posix_spawn", "os.system")):
        watched.append(("start", event))


def led_to(name, itself=False):
    """Return the file that is opened, behind all links, or the link ``itself``, at which opening it then fails."""
    folder, file = os.path.split(name)
    return os.path.join(os.path.realpath(folder), file) if itself else os.path.realpath(name)


@contextmanager
def watching():
    global watched, _hooked
    if not _hooked:
        sys.addaudithook(hook)
        _hooked = True
    watched = []
    try:
        yield watched
    finally:
        watched = None


def contents(folder):
    """Return all files of a folder: contents, where links lead to, and times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        link = os.readlink(path) if path.is_symlink() else ""
        found[path] = (content, link, info.st_mtime_ns, info.st_mode, info.st_size)
    return found


def outside(folder):
    """Return all that is beside the folder."""
    return {path: found for path, found in contents(folder.parent).items() if not is_in(str(path), str(folder))}


def packages():
    """Return what is imported; an honest folder has loaded all that is needed, but for parts of libraries."""
    return {name.partition(".")[0] for name in sys.modules}


READABLE = {sys.prefix, sys.base_prefix, os.path.dirname(fedweave.__file__), *filter(None, sys.path), *TZPATH}
READABLE |= {"/proc", "/sys", "/dev", "/usr/share/fonts", matplotlib.get_cachedir(), matplotlib.get_configdir()}
READABLE |= {os.path.realpath(path) for path in READABLE}


def is_in(path, folder):
    return path == folder or path.startswith(folder + os.sep)


def check_events(events, folder):
    """Assert that a command kept to the folder, and imported or started nothing that an honest folder does not need."""
    for what, name in events:
        assert what != "start", name
        path = os.path.abspath(name)
        if is_in(path, str(folder)):
            continue
        assert what in ("read", "write"), (what, path)
        if what == "write":
            assert path.startswith(("/dev/", "/proc/")) or "__pycache__" in path, path
        else:  # what Python looks for modules in is listed
            assert path in sys.path or any(is_in(path, place) for place in READABLE), path


LEAVES = {
    "a file of the system": lambda base: open("/etc/passwd").close(),
    "the home folder": lambda base: os.listdir(Path.home()),
    "a file beside the folder": lambda base: (base / VICTIM).read_text(),
    "a link": lambda base: (base / "c" / "link").read_text(),
    "a database": lambda base: sqlite3.connect(base / "other.sqlite").close(),
    "a database by its address": lambda base: sqlite3.connect((base / "x.sqlite").as_uri(), uri=True).close(),
    "a new file": lambda base: (base / "new").touch(),
    "a program": lambda base: subprocess.run(["true"], check=False),
}


@pytest.mark.parametrize("leave", LEAVES.values(), ids=LEAVES)
def test_whatever_leaves_the_folder_is_noticed(leave, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / VICTIM).write_text("mine")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "link").symlink_to(tmp_path / VICTIM)
    with watching() as events:
        leave(tmp_path)
    with pytest.raises(AssertionError):
        check_events(events, tmp_path / "c")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("batch", range(FOLDERS // BATCH))
def test_hostile_folders(batch, original, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedweave"])
    refused, spared, known = 0, 0, packages()
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        base = tmp_path / str(seed)
        folder = Path(shutil.copytree(original, base / "c", symlinks=True))
        (base / VICTIM).write_text("mine")
        (base / "copy").write_bytes((original / "compare.json").read_bytes())
        for run in folder.iterdir():
            if run.is_dir():
                (run / "evil_part.py").write_text(EVIL)
        honest = contents(folder)
        Vandal(seed, folder).strike()
        spared += [v[:2] for v in honest.values()] == [v[:2] for v in contents(folder).values()]
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder / "fedavg-seed0"))
        before = outside(folder)
        names = list(COMMANDS)
        random.Random(seed).shuffle(names)
        for name in names:
            with watching() as events, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                refused += _told(COMMANDS[name], folder, (seed, name))
            check_events(events, folder)
        assert outside(folder) == before, seed
        assert packages() <= known, seed
        capsys.readouterr()
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(base)
    assert spared <= BATCH // 5, "most strikes change something"
    assert refused > 2 * (BATCH - spared), "of five commands more than two notice a change"


def _told(command, folder, what):
    """Return whether a command refused the folder; any other error than a declared one ends the test."""
    try:
        command(folder)
    except (BadInput, NotStored) as e:
        sentences = e.problems if isinstance(e, BadInput) else (str(e),)
        assert all(s.isprintable() and 10 < len(s) < 3000 for s in sentences), (what, sentences)
        return True
    except SystemExit as e:  # verify ends with 1 after it has said what is wrong
        assert e.code == 1, what  # noqa: PT017
        return True
    except BaseException as e:
        raise AssertionError(f"folder {what}") from e
    return False


NAMES = ["evil_part:x", "antigravity:x", "os:system", "../evil:x"]
NAMES += ["os:abort", "evil_part:Part.x", "__main__:x", "fedweave.runs.loop:run"] if THOROUGH else []
PLACES = [("data",), ("model",), ("task",), ("partition",), ("system",), ("pacing",), ("method",), ("submodels",)]
PLACES += [("partition", "type"), ("system", "type"), ("method", "type"), ("type",), ("method", "name")]
PLACES += [("method", part, "type") for part in ("sampler", "solver", "aggregator", "server", "upload", "pacing")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_a_plug_in_that_only_a_folder_names_is_never_imported(place, original, tmp_path, monkeypatch, capsys):
    """Whether alone or as a table, and even where all files of the folder agree."""
    for module in ("evil_part", "evil_part_was_imported", "antigravity"):
        sys.modules.pop(module, None)
    monkeypatch.setattr(sys, "argv", ["fedweave"])
    monkeypatch.setattr(plugins, "search_here", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil_part.py").write_text(EVIL)
    known = packages()
    for n, (name, alone) in enumerate(itertools.product(NAMES, [True, False])):
        folder = Path(shutil.copytree(original, tmp_path / str(n) / "c"))
        for run in Vandal(0, folder).runs:
            node = plain = json.loads((run / "experiment.json").read_text())
            for key in place[:-1]:
                node = node[key]
            node[place[-1]] = name if alone else {"type": name}
            agree(folder, run, plain)
        for command in COMMANDS if THOROUGH else ["resume"]:
            with watching() as events:
                told = _told(COMMANDS[command], folder, (place, name))
            check_events(events, folder)
            assert told or command != "resume", name
        assert packages() <= known, name
    capsys.readouterr()
