"""Finished runs of an unfinished item go on to the next sitting, on another machine too, and change nothing."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from fedweave import papers
from fedweave.cli.app import app
from fedweave.core.settings import BadInput
from fedweave.papers.common import cache, reproduction, unfinished
from fedweave.papers.common.panels import curves
from fedweave.papers.common.record import Record, last
from fedweave.papers.common.study import Measure, Study
from fedweave.papers.common.unfinished import Unfinished

ITEM, NAME = "latency/fig3", "latency-fig3.smoke"


def reproduce(item, *more):
    with pytest.raises(SystemExit, match="0"):
        app(["reproduce", item, "--quiet", *more])


def sitting(monkeypatch, folder, machine, runs, item=ITEM, *more):
    """Reproduce with an empty cache until so many runs were begun; return how many there were."""
    monkeypatch.setenv("FEDWEAVE_CACHE", str(machine))
    begun = []

    def now():
        begun.append(1)
        return 0.0 if len(begun) <= runs else 1e9

    with monkeypatch.context() as patch:
        patch.setattr(reproduction, "time", SimpleNamespace(monotonic=now))
        reproduce(item, "--budget", "100d", "--record", str(folder), *more)
    return min(len(begun), runs)


def content_of(folder, name=NAME):
    content = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    assert content.pop("cost")["unknown"] == 0
    return content


@pytest.fixture
def undisturbed(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path / "undisturbed"))
    reproduce(ITEM, "--record", str(tmp_path / "whole"))
    return content_of(tmp_path / "whole")


def test_several_sittings_with_empty_caches_give_the_record_of_one(undisturbed, tmp_path, monkeypatch):
    folder, done = tmp_path / "records", [0]
    for machine in range(100):
        begun = sitting(monkeypatch, folder, tmp_path / f"machine{machine}", 2)
        if (folder / f"{NAME}.json").exists():
            break
        done.append(len(list((folder / "unfinished" / NAME).glob("*.run"))))
        assert done[-1] == done[-2] + begun  # nothing was computed twice
    assert len(done) > 2
    assert content_of(folder) == undisturbed
    assert [path.name for path in folder.iterdir()] == [f"{NAME}.json"]


def test_another_processor_may_continue_and_is_named(undisturbed, tmp_path, monkeypatch):
    folder = tmp_path / "records"
    with monkeypatch.context() as patch:
        patch.setattr(cache, "processor", lambda: {"name": "another"})
        sitting(monkeypatch, folder, tmp_path / "first", 3)
    sitting(monkeypatch, folder, tmp_path / "second", 1000)
    found = content_of(folder)
    assert {origin["processor"]["name"] for origin in found["origins"]} > {"another"}
    assert found["measures"] == undisturbed["measures"]


@pytest.fixture
def earlier(tmp_path, monkeypatch):
    """Return a folder with three of the runs of a two-seed item with two arms, all by an earlier version."""
    monkeypatch.setattr(papers, "studies", lambda: {"delta/x": two_arms()})
    folder = tmp_path / "records"
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_digest_of", lambda *modules: "a" * 64)
        patch.setattr(unfinished, "code_digest", lambda: "b" * 64)
        sitting(monkeypatch, folder, tmp_path / "first", 3, "delta/x")
    return folder


def drawn(arm, seed):
    return Record({"round": np.arange(1, 4), "loss": np.random.default_rng([arm, seed]).random(3)})


def two_arms():
    return Study(
        name="delta/x",
        shows="",
        arms=lambda scale: {"one": 1, "two": 2},
        seeds={"smoke": 2, "laptop": 2, "paper": 2},
        measures={"loss": Measure(last("loss"))},
        panels=(curves("Loss", "loss"),),
        work=drawn,
    )


def test_runs_of_an_earlier_version_are_left_alone(earlier, tmp_path, monkeypatch, capfd):
    said = "delta/x: 2 runs of an earlier version of the code are not used (--accept-earlier-versions).\n"
    assert sitting(monkeypatch, earlier, tmp_path / "none", 0, "delta/x") == 0
    assert capfd.readouterr().err.count(said) == 1, "before anything is computed again"
    assert sitting(monkeypatch, earlier, tmp_path / "second", 1000, "delta/x") == 4
    assert capfd.readouterr().err.count(said) == 1
    assert [origin["seeds"] for origin in content_of(earlier, "delta-x.smoke")["origins"]] == [[0, 1]]


def test_whole_seeds_of_an_earlier_version_are_used_when_asked(earlier, tmp_path, monkeypatch):
    begun = sitting(monkeypatch, earlier, tmp_path / "second", 1000, "delta/x", "--accept-earlier-versions")
    assert begun == 2  # the whole second seed, though one of its runs was there
    origins = content_of(earlier, "delta-x.smoke")["origins"]
    assert {tuple(origin["seeds"]): origin["code"] for origin in origins} == {
        (0,): "b" * 64,
        (1,): cache.code_digest(),
    }


def test_a_seed_of_two_earlier_versions_is_not_used(earlier, tmp_path, monkeypatch):
    index = earlier / "unfinished" / "delta-x.smoke" / "index.json"
    entries = json.loads(index.read_text())
    next(entry for entry in entries.values() if (entry["seed"], entry["arm"]) == (0, "two"))["code"] = "c" * 64
    index.write_text(json.dumps(entries))
    assert sitting(monkeypatch, earlier, tmp_path / "second", 1000, "delta/x", "--accept-earlier-versions") == 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-10]),
        lambda path: path.write_bytes(b"PK rubbish"),
        lambda path: path.with_name("index.json").write_text("{"),
        lambda path: path.with_name("index.json").write_text('{"../../x": {}}'),
    ],
)
def test_damage_is_named_and_what_is_removed_is_computed_again(damage, undisturbed, tmp_path, monkeypatch):
    folder = tmp_path / "records"
    sitting(monkeypatch, folder, tmp_path / "first", 3)
    path = sorted((folder / "unfinished" / NAME).glob("*.run"))[0]
    damage(path)
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path / "second"))
    with pytest.raises(BadInput, match=r"damaged|cannot be read"):
        papers.reproduce(ITEM, unfinished=papers.unfinished(ITEM, "smoke", folder))
    path.unlink()
    if not path.with_name("index.json").read_text().endswith("}\n"):
        shutil.rmtree(path.parent)
    papers.record(papers.reproduce(ITEM, unfinished=papers.unfinished(ITEM, "smoke", folder)), folder)
    assert content_of(folder) == undisturbed


def test_tuning_runs_stay_when_the_item_is_finished_without_them(tmp_path, monkeypatch):
    monkeypatch.setattr(papers, "studies", lambda: {"delta/x": two_arms()})
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path / "cache"))
    left, study = papers.unfinished("delta/x", "smoke", tmp_path), two_arms()
    for arm, column in enumerate(("tune", "tuned", "paper")):
        facts = cache.run_facts(study.work, arm, 0)
        left.add({(column, str(arm), 0): facts}, {facts.name: drawn(arm, 0)})
    left.save()
    papers.record(papers.reproduce("delta/x"), tmp_path)
    again = papers.unfinished("delta/x", "smoke", tmp_path)
    assert sorted(entry.column for entry in again.entries.values()) == ["tune", "tuned"]
    assert {path.stem for path in again.folder.glob("*.run")} == set(again.entries)
    again.remove()
    assert not (tmp_path / "unfinished").exists()


def test_what_is_interrupted_is_kept_too(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path / "cache"))
    runs = Unfinished(tmp_path / "left")

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        papers.reproduce(ITEM, on_progress=stop, unfinished=runs)
    assert len(Unfinished(tmp_path / "left").entries) == 2
