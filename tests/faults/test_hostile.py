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
import sys
import warnings
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from fleet import THOROUGH, WORLD
from safetensors.numpy import load, save

from fedweave import report
from fedweave.cli import app as cli
from fedweave.cli import verify
from fedweave.cli.options import experiments_of
from fedweave.core import plugins
from fedweave.core.settings import BadInput
from fedweave.runs.compare import compare
from fedweave.tables.files import NotStored
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
        place = self.rng.choice([*run.iterdir(), run, self.folder / "compare.json", run / "audit.jsonl"])
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
        writes = bool((args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        watched.append(("write" if writes else "read", os.fsdecode(args[0])))
    elif event in WRITES:
        watched.extend(("write", os.fsdecode(a)) for a in args[:2] if isinstance(a, str | bytes))
    elif event in ("os.listdir", "os.scandir") and isinstance(args[0], str | bytes):
        watched.append(("read", os.fsdecode(args[0])))
    elif event.startswith(("subprocess", "socket.connect", "os.exec", "os.fork", "os.posix_spawn", "os.system")):
        watched.append(("start", event))


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


def outside(folder):
    """Return all that is beside the folder: names, contents and times."""
    found = {}
    for path in sorted(folder.parent.rglob("*")):
        if path != folder and folder not in path.parents:
            info = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found[str(path)] = (content, info.st_mtime_ns, info.st_mode, info.st_size)
    return found


def packages():
    """Return what is imported; an honest folder has loaded all that is needed, but for parts of libraries."""
    return {name.partition(".")[0] for name in sys.modules}


def check_events(events, folder):
    """Assert that a command kept to the folder, and imported or started nothing that an honest folder does not need."""
    base, home = str(folder.parent), str(folder)
    for what, name in events:
        assert what != "start", name
        path = os.path.abspath(name)
        inside = path == home or path.startswith(home + os.sep)
        assert inside or not path.startswith(base), (what, path)
        if what == "write" and not inside:
            assert path.startswith(("/dev/", "/proc/")) or "__pycache__" in path, path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("batch", range(FOLDERS // BATCH))
def test_hostile_folders(batch, original, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedweave"])
    refused, known = 0, packages()
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        base = tmp_path / str(seed)
        folder = Path(shutil.copytree(original, base / "c", symlinks=True))
        (base / VICTIM).write_text("mine")
        (base / "copy").write_bytes((original / "compare.json").read_bytes())
        for run in folder.iterdir():
            if run.is_dir():
                (run / "evil_part.py").write_text(EVIL)
        Vandal(seed, folder).strike()
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
    assert refused > BATCH, "most changes are noticed by most commands"


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
