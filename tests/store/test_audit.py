"""The audit log: whatever is changed, dropped, moved or cut is found, at its line; what is resumed goes on in it."""

import json

import numpy as np
import pytest

import fedweave as fw
from fedweave.cli.options import experiments_of
from fedweave.cli.verify import verify
from fedweave.core.records import Failure
from fedweave.runs.loop import resume, run
from fedweave.store.audit import FILE

ROUNDS = 5
WORLD = {
    "data": "quadratics", "partition": "iid", "clients": "6", "per_round": "3", "rounds": str(ROUNDS),
    "system": "dynamic", "audit": "true",
}  # fmt: skip


def audited():
    (experiment,), _ = experiments_of(["fedacs"], WORLD)
    return experiment


@pytest.fixture
def log(tmp_path):
    """A finished run, its lines, and a way to put others in their place."""
    run(audited(), tmp_path / "run")
    path = tmp_path / "run" / FILE
    return path, path.read_bytes().splitlines(keepends=True)


def test_there_is_a_line_for_every_answer_and_model(log):
    path, lines = log
    result = fw.load_result(path.parent)
    lines = [json.loads(line) for line in lines]
    answers = [line for line in lines if "client" in line]
    assert [line["round"] for line in answers] == result.clients["round"].tolist()
    assert [line["client"] for line in answers] == result.clients["client"].tolist()
    assert [line["verdict"] == "accepted" for line in answers] == result.clients["received"].astype(bool).tolist()
    models = [line["sha256"] for line in lines if line["verdict"] == "model"]
    assert len(models) == ROUNDS
    assert models[-1] == result.summary["digest"]
    found = verify(path.parent)
    assert found.problems == []
    assert found.rounds == ROUNDS
    assert found.verdicts["accepted"] == result.clients["received"].sum()
    assert found.chain == lines[-1]["chain"]


def problems(path, lines):
    path.write_bytes(b"".join(lines))
    return verify(path.parent).problems


def test_every_edited_line_is_the_first_bad_one(log):
    path, lines = log
    for n, line in enumerate(lines):
        edited = json.loads(line)
        edited["client" if "client" in edited else "sha256"] = 5
        (found,) = problems(path, [*lines[:n], json.dumps(edited).encode() + b"\n", *lines[n + 1 :]])
        assert found == f"{FILE}:{n + 1} does not follow from the lines before it."


def test_a_flipped_bit_anywhere_is_found_at_its_line(log):
    path, lines = log
    rng, whole = np.random.default_rng(0), b"".join(lines)
    for at in rng.integers(0, len(whole), 300):
        broken = bytearray(whole)
        broken[at] ^= 1 << int(rng.integers(8))
        number = whole[:at].count(b"\n") + 1
        found = problems(path, [bytes(broken)])
        assert found, at
        assert int(found[0].split(":")[1].split()[0]) in (number, number + 1), found  # +1: its end became another sign


@pytest.mark.parametrize("n", [0, 3, -1])
def test_a_dropped_repeated_or_moved_line_is_found(n, log):
    path, lines = log
    n %= len(lines)
    assert problems(path, lines[:n] + lines[n + 1 :])[0].startswith(f"{FILE}:{n + 1} ")
    if n + 1 < len(lines):
        repeated = problems(path, [*lines[: n + 1], lines[n], *lines[n + 1 :]])
        assert repeated == [f"{FILE}:{n + 2} does not follow from the lines before it."]
        moved = problems(path, [*lines[:n], lines[n + 1], lines[n], *lines[n + 2 :]])
        assert moved == [f"{FILE}:{n + 1} does not follow from the lines before it."]


def test_every_cut_is_found(log):
    path, lines = log
    whole = b"".join(lines)
    for end in range(0, len(whole), 53):
        (found,), complete = problems(path, [whole[:end]]), whole[:end].count(b"\n")
        assert found == f"{FILE}:{complete + 1} is missing: the log was cut here."
    path.unlink()
    assert verify(path.parent).problems == [f"{FILE}:1 is missing: the log was cut here."]


def test_other_settings_do_not_fit_the_log(log):
    path, _ = log
    settings = path.parent / "experiment.json"
    settings.write_text(settings.read_text().replace('"lr": 0.05', '"lr": 0.06'))
    assert verify(path.parent).problems == [f"{FILE}:1 does not follow from the lines before it."]


def test_rubbish_is_no_log(log):
    path, lines = log
    for rubbish in (b"[]\n", b"7\n", b"{}\n", b"\xff\n", b"[" * 2_000 + b"\n"):
        filled = rubbish + b" " * max(len(b"".join(lines)) - len(rubbish), 0)
        path.write_bytes(filled)
        assert verify(path.parent).problems == [f"{FILE}:1 is not a line of an audit log."]


def test_an_interrupted_run_goes_on_in_its_log(log, tmp_path):
    def watch(row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    again = tmp_path / "again"
    with pytest.raises(KeyboardInterrupt):
        run(audited(), again, watch)
    with (again / FILE).open("ab") as file:
        file.write(b"half a li")  # as after a crash
    assert verify(again).problems == []
    resume(again)
    assert (again / FILE).read_bytes() == b"".join(log[1])
    assert verify(again).problems == []


def test_a_run_without_a_log_has_none(tmp_path):
    (experiment,), _ = experiments_of(["fedavg"], {**WORLD, "audit": "false"})
    run(experiment, tmp_path / "run")
    assert not (tmp_path / "run" / FILE).exists()
    found = verify(tmp_path / "run")
    assert (found.chain, found.verdicts, found.problems) == ("", {}, [])


def test_a_damaged_state_and_a_lost_round_are_reported(log):
    import sqlite3

    path, _ = log
    (state,) = path.parent.glob("state-*.safetensors")
    state.write_bytes(b"rubbish")
    with sqlite3.connect(path.parent / "run.sqlite") as db:
        db.execute("DELETE FROM rounds WHERE round = 2")
    assert verify(path.parent).problems == [
        "The rounds are not 1, 2, 3, … once each.",
        f"{state.name} is missing or damaged.",
    ]


def test_refusals_are_in_the_log_with_their_reason(tmp_path, monkeypatch):
    from fedweave.engine.simulator import Simulator

    honest = Simulator.train

    def train(self, *given):
        got = honest(self, *given)
        got.updates[got.received] = np.nan
        return got

    monkeypatch.setattr(Simulator, "train", train)
    run(audited(), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / FILE).read_bytes().splitlines()]
    refused = [line for line in lines if line["verdict"] == "refused"]
    assert refused
    assert all("values are not finite, first in" in line["why"] for line in refused)
    assert {line["verdict"] for line in lines} <= {"refused", "lost", "abandoned", "model"}
    assert len({line["sha256"] for line in lines if line["verdict"] == "model"}) == 1
    assert str(Failure(refused[0]["client"], refused[0]["why"])).startswith("client ")


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("how", ["edited", "cut", "deleted", "forgotten"])
def test_a_run_does_not_go_on_over_a_broken_log(how, finished, tmp_path):
    import sqlite3

    def watch(row):
        if row["round"] == 3 and not finished:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    if finished:
        run(audited(), folder)
    else:
        with pytest.raises(KeyboardInterrupt):
            run(audited(), folder, watch)
    log, before = folder / FILE, (folder / FILE).read_bytes()
    if how == "edited":
        log.write_bytes(before.replace(b"accepted", b"rejected", 1))
    elif how == "cut":
        log.write_bytes(before[:-200])
    elif how == "deleted":
        log.unlink()
    else:
        with sqlite3.connect(folder / "run.sqlite") as db:
            db.execute("DELETE FROM audit")
    broken = log.read_bytes() if log.exists() else None
    with pytest.raises(fw.BadInput, match=r"audit\.jsonl.* Put the log back as it was, or start a new run\."):
        resume(folder)
    assert (log.read_bytes() if log.exists() else None) == broken
    if how != "forgotten":
        log.write_bytes(before)
        assert resume(folder).summary["rounds"] == ROUNDS
