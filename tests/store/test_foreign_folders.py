"""A run folder from somebody else: wrong types, links and paths are refused in a sentence; nothing else is touched."""

import json
import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import fedweave as fw
from fedweave.cli.options import experiments_of
from fedweave.cli.verify import verify
from fedweave.core.settings import BadInput
from fedweave.runs import compare as comparing
from fedweave.runs import folders
from fedweave.runs.loop import load_result, resume, run
from fedweave.store.run_folder import RunFolder
from fedweave.store.states import pack, unpack

WORLD = {"data": "quadratics", "partition": "iid", "clients": "5", "per_round": "2", "rounds": "3", "steps": "2"}
DEEP = "[" * 900 + "]" * 900
VALUES = ["null", "7", "-1", "1e999", "9" * 400, '"text"', "[]", "{}", "[null]", "true", '{"type": 5}', DEEP]
VALUES += ['"\\ud800"', '"\\u001b[2J"', "[" * 100_000, '{"a": ' * 60 + "1" + "}" * 60, "\x00", ""]


def interrupted(method="scaffold", **changes):
    """Return a maker of an interrupted run."""
    (experiment,), _ = experiments_of([method], {**WORLD, **changes})

    def watch(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    def make(folder):
        with pytest.raises(KeyboardInterrupt):
            run(experiment, folder, watch)
        return folder

    return make


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return interrupted()(tmp_path_factory.mktemp("original") / "run")


@pytest.fixture
def folder(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "run"))


READERS = {"resume": resume, "report": load_result, "verify": verify, "continue": comparing.resume_comparison}


def one_sentence(call, *args):
    """Assert that a call is refused, in one line that a terminal can show; or that it takes what it is given."""
    told: tuple[str, ...] = ()
    try:
        call(*args)
    except BadInput as e:
        told = e.problems
    assert all(line.isprintable() and len(line) < 2000 for line in told), told
    return "\n".join(told)


@pytest.mark.parametrize("name", ["experiment.json", "manifest.json"])
@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_any_json_in_the_place_of_a_file(name, value, folder):
    (folder / name).write_text(value)
    for command in ("resume", "report"):
        assert name in one_sentence(READERS[command], folder)


def test_any_json_in_the_place_of_a_value(folder):
    """Every value of both files, one after the other."""
    for name in ("experiment.json", "manifest.json"):
        content = json.loads((folder / name).read_text())
        for key in content:
            for value in VALUES:
                text = json.dumps({**content, key: "@"}).replace('"@"', value)
                (folder / name).write_text(text)
                one_sentence(load_result, folder)
        (folder / name).write_text(json.dumps(content))


TASKS = ['"text"', "[]", "{}", '{"primary": 7, "higher_is_better": true}']
TASKS += ['{"primary": "class_accuracy", "higher_is_better": true}', '{"primary": "loss", "higher_is_better": "no"}']


@pytest.mark.parametrize("task", TASKS)
def test_any_json_in_the_place_of_the_task(task, folder):
    content = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**content, "task": json.loads(task)}))
    for command in ("resume", "report"):
        assert "manifest.json" in one_sentence(READERS[command], folder)


COMPARED = ["null", "[]", "{}", '{"runs": {}}', '{"runs": [], "command": null}', '{"runs": {"a": null}}', DEEP]


@pytest.mark.parametrize("value", COMPARED, ids=range(len(COMPARED)))
def test_any_json_in_the_place_of_a_comparison(value, tmp_path):
    (tmp_path / "compare.json").write_text(value)
    for call in (folders.runs_in, comparing.resume_comparison):
        assert "compare.json" in one_sentence(call, tmp_path)


@pytest.mark.parametrize("name", ["../victim", "/tmp/victim", "..", "", ".hidden", "a/b", "a\\b", "x" * 300])
def test_a_name_of_a_comparison_is_no_path(name, folder, tmp_path):
    plain = json.loads((folder / "experiment.json").read_text())
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "compare.json").write_text(json.dumps({"command": None, "runs": {name: plain}}))
    for call in (folders.runs_in, comparing.resume_comparison):
        assert "cannot be used for a file" in one_sentence(call, tmp_path / "c")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c", "run"]


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/b", "..", "", "x\n", "x" * 300])
def test_a_methods_name_is_no_path(name, tmp_path):
    with pytest.raises(BadInput, match="cannot be used for a file"):
        experiments_of(["fedavg"], WORLD, [f"method.name={json.dumps(name)}"])


SQL = {
    "text as a number": "UPDATE rounds SET clock = 'late'",
    "bytes as a number": "UPDATE rounds SET asked = x'00ff'",
    "nothing as a number": "UPDATE rounds SET received = NULL",
    "a negative client": "UPDATE clients SET client = -1 WHERE rowid = 1",
    "a client beyond all memory": "UPDATE clients SET client = 4611686018427387904 WHERE rowid = 1",
    "no list": "UPDATE rounds SET class_accuracy = '{'",
    "a list of words": """UPDATE rounds SET class_accuracy = '["a"]'""",
    "a nested list": f"UPDATE rounds SET class_accuracy = '{DEEP}'",
    "lists of two lengths": "UPDATE rounds SET class_accuracy = CASE round WHEN 1 THEN '[1]' ELSE '[1, 2]' END",
    "a number as a list": "UPDATE rounds SET class_accuracy = 7",
    "a measure that is text": "INSERT INTO measures VALUES (1, 'height', 'high')",
    "a measure without a name": "INSERT INTO measures VALUES (1, x'00', 1.0)",
    "a state without a file": "UPDATE states SET file = NULL",
    "a state that is a number": "UPDATE states SET file = 7",
    "a digest that is a number": "UPDATE states SET sha256 = x'00'",
    "an end that is text": "INSERT INTO audit VALUES (1, 'all', 'x')",
    "a negative end": "INSERT INTO audit VALUES (1, -5, 'x')",
    "another table": "DROP TABLE rounds; CREATE TABLE rounds (x)",
    "no table": "DROP TABLE clients; CREATE VIEW clients AS SELECT * FROM rounds",
    "an endless view": "DROP TABLE measures; CREATE VIEW measures AS WITH RECURSIVE n(round, name, value) AS "
    "(SELECT 1, 'x', 1.0 UNION ALL SELECT 1, 'x', value + 1 FROM n) SELECT * FROM n",
    "a trigger": "CREATE TRIGGER t AFTER DELETE ON rounds BEGIN DELETE FROM states; END",
}


@pytest.mark.parametrize("sql", SQL.values(), ids=SQL)
def test_any_value_in_the_database(sql, folder):
    with closing(sqlite3.connect(folder / "run.sqlite")) as db:
        db.executescript(sql)
    told = [one_sentence(READERS[command], folder) for command in ("resume", "report", "verify")]
    assert any("run.sqlite" in sentence for sentence in told), told


@pytest.mark.parametrize("name", ["../victim", "/etc/passwd", "state-000009.safetensors", ".lock"])
def test_the_file_of_a_state_is_named_by_its_round(name, folder, tmp_path):
    (tmp_path / "victim").write_text("mine")
    with closing(sqlite3.connect(folder / "run.sqlite")) as db, db:
        db.execute("INSERT INTO states VALUES (0, ?, '00')", (name,))
        db.execute("INSERT INTO states VALUES (-1, ?, '00')", (name,))
    assert "run.sqlite" in one_sentence(resume, folder)
    assert (tmp_path / "victim").read_text() == "mine"


LINKS = [".lock", "run.sqlite", "run.sqlite-wal", "run.sqlite-shm", "run.sqlite-journal", "experiment.json"]
LINKS += ["manifest.json", "rows-clients.memory.bin", "state-000002.safetensors", "audit.jsonl"]


@pytest.mark.parametrize("how", [os.symlink, os.link], ids=["symbolic", "hard"])
@pytest.mark.parametrize("name", LINKS)
def test_links_are_not_followed(name, how, tmp_path):
    """The victim is what the folder would have had there, so that following it would do no harm to the folder."""
    folder = interrupted(audit="true")(tmp_path / "run")
    place, victim = folder / name, tmp_path / "victim"
    victim.write_bytes(place.read_bytes() if place.exists() else b"mine")
    before = victim.read_bytes()
    place.unlink(missing_ok=True)
    how(victim, place)
    told = one_sentence_or_not_stored(folder)
    assert name in told or (how is os.link and name.endswith(("json", "safetensors", "-shm")))
    assert victim.read_bytes() == before


def one_sentence_or_not_stored(folder):
    try:
        return one_sentence(resume, folder)
    except OSError as e:
        return str(e)


def test_a_run_of_a_comparison_is_no_link(folder, tmp_path):
    comparison = tmp_path / "c"
    comparison.mkdir()
    plain = json.loads((folder / "experiment.json").read_text())
    (comparison / "compare.json").write_text(json.dumps({"command": None, "runs": {"a": plain}}))
    (comparison / "a").symlink_to(folder)
    for call in (folders.runs_in, comparing.resume_comparison):
        assert "is a link" in one_sentence(call, comparison)


FORGED = {
    "a table elsewhere": lambda s: s._replace(clients={"../../x": s.clients["memory"]}),
    "another model": lambda s: s._replace(x=s.x[:3]),
    "a model of whole numbers": lambda s: s._replace(x=s.x.astype(int)),
    "a part of another shape": lambda s: s._replace(aggregator={k: v[:1] for k, v in s.aggregator.items()}),
    "a part that is missing": lambda s: s._replace(aggregator={}),
    "refusals of nobody": lambda s: s._replace(refusals={"refused": np.zeros(1, int)}),
    "another round": lambda s: s._replace(round=1),
    "a best model of another shape": lambda s: s._replace(best={**s.best, "x": s.x[:3]}),
    "a best model that is a table": lambda s: s._replace(best={**s.best, "x": s.clients["memory"]}),
    "a best model without a round": lambda s: s._replace(best={"x": s.x}),
    "a fleet of holders alone": lambda s: s._replace(fleet={"holder": np.zeros((3, 32), np.uint8)}),
    "a fleet of other lengths": lambda s: s._replace(fleet={"samples": np.ones(3, int), "covered": np.ones(2)}),
    "a fleet that is a table": lambda s: s._replace(fleet={"samples": s.clients["memory"]}),
    "a fleet with less than no samples": lambda s: s._replace(fleet={"samples": np.array([1, -1])}),
    "a fleet of something else": lambda s: s._replace(fleet={"samples": np.ones(3, int), "x": np.ones(3)}),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_state_with_a_valid_digest_must_fit(forge, folder):
    import hashlib

    file = sorted(folder.glob("state-*"))[-1]
    with closing(RunFolder.open(folder)) as store:
        content = pack(forge(store.load_state()))
    file.write_bytes(content)
    with closing(sqlite3.connect(folder / "run.sqlite")) as db, db:
        db.execute("UPDATE states SET sha256 = ? WHERE file = ?", (hashlib.sha256(content).hexdigest(), file.name))
    before = sorted(folder.parent.iterdir())
    with pytest.warns(UserWarning, match="missing or damaged") if forge is FORGED["another round"] else nothing():
        assert one_sentence(resume, folder) or forge is FORGED["another round"]  # which falls back
    assert sorted(folder.parent.iterdir()) == before


def nothing():
    from contextlib import nullcontext

    return nullcontext()


SLOTS = {
    "a slot beyond all memory": {"slot": lambda a: a + 2**40},
    "negative slots": {"slot": lambda a: a - 9},
    "slots that are fractions": {"slot": lambda a: a.astype(float)},
    "too few scales": {"scale": lambda a: a[:1]},
    "sums that are fractions": {"check": lambda a: a.astype(float)},
}


@pytest.mark.parametrize("change", SLOTS.values(), ids=SLOTS)
def test_a_table_with_wrong_slots_is_refused(change, folder):
    from safetensors import safe_open
    from safetensors.numpy import load, save

    file = sorted(folder.glob("state-*"))[-1]
    with safe_open(file, "numpy") as opened:
        header = opened.metadata()
    arrays = load(file.read_bytes())
    for column, how in change.items():
        arrays[f"clients.memory/{column}"] = how(arrays[f"clients.memory/{column}"])
    with pytest.raises(BadInput, match="not a state of fedweave"):
        unpack(save(arrays, header))
    wide = {**header, "tables": header["tables"].replace('"dim": ', '"dim": -')}
    with pytest.raises(BadInput, match="not a state of fedweave"):
        unpack(save(load(file.read_bytes()), wide))


def test_nothing_in_a_run_folder_is_imported(folder, monkeypatch):
    """Class names are looked up among the parts that this process knows; a name with a module is none of them."""
    (folder / "evil_part.py").write_text("")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for name in ("evil_part", "evil_part:Part", "evil_part.Part", "fedweave.sample.Uniform", "os.system"):
        for path in (("method", "sampler"), ("method", "solver"), ("system",), ("partition",), ("method",), ()):
            changed = {}
            for file in ("experiment.json", "manifest.json"):
                content = json.loads((folder / file).read_text())
                node = content if file == "experiment.json" else content["experiment"]
                for key in path:
                    node = node[key]
                changed[file] = (folder / file).read_text()
                node["type"] = name
                (folder / file).write_text(json.dumps(content))
            assert one_sentence(resume, folder)
            for file, text in changed.items():
                (folder / file).write_text(text)
    assert "evil_part" not in sys.modules


@pytest.mark.parametrize("field", ["data", "system", "inside a layer"])
def test_a_path_that_a_run_folder_names_is_read_only_with_trust(field, tmp_path):
    """A world from a file: the folder of somebody else does not decide what is read here."""
    world = tmp_path / "world.csv"
    world.write_text("client,steps\n0,1\n1,2\n")
    layers = ",jitter:0.2,day-night:4" if field == "inside a layer" else ""
    folder = interrupted("fedavg", system=f"{world}{layers}")(tmp_path / "run")
    if field == "data":
        for file in ("experiment.json", "manifest.json"):
            content = json.loads((folder / file).read_text())
            node = content if file == "experiment.json" else content["experiment"]
            node["data"], node["system"] = str(tmp_path), {"type": "Uniform"}
            (folder / file).write_text(json.dumps(content))
    with pytest.raises(BadInput, match=r"names\. If you trust the folder, resume with --trust"):
        resume(folder)
    if field != "data":
        assert resume(folder, trust=True).summary["rounds"] == 3
        assert fw.load_result(folder).summary["rounds"] == 3  # which reads the folder alone
    else:
        with pytest.raises(BadInput, match=r"class folders|has no images"):
            resume(folder, trust=True)


def test_a_target_beyond_one_can_be_read_back(tmp_path):
    """A target is a value of the task's own metric, such as a loss."""
    folder = interrupted("fedavg", target="7.5")(tmp_path / "run")
    assert load_result(folder).experiment["target"] == 7.5
    assert resume(folder).summary["rounds"] == 3
