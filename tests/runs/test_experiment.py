"""An Experiment takes parts, or text as on the command line; stored ones are whole, and those of 0.1 are read."""

import json

import pytest

import fedweave as fw
from fedweave.report import write
from fedweave.runs.compare import resume_comparison
from fedweave.runs.experiment import from_plain, to_plain
from fedweave.store.export import write_tables

OLD = {"pool": "engine", "max_length_ratio": "longest", "min_answers": "fewest"}


def test_texts_stand_for_parts_and_the_whole_description_is_stored(tmp_path):
    (tmp_path / "t.csv").write_text("client,steps\n0,2\n")
    written = fw.Experiment(method="fedacs", data="digits", partition="classes:2-5", system="dynamic", submodels=())
    parts = fw.Experiment(fw.methods.fedacs(5), "digits", fw.partition.Classes(20, 2, 5), system=fw.system.Dynamic())
    assert written == parts
    plain = json.loads(json.dumps(to_plain(written)))
    assert plain == json.loads(json.dumps(to_plain(parts)))
    assert (plain["method"]["sampler"]["type"], plain["partition"]["type"], plain["system"]["type"]) == (
        "ACS", "Classes", "Dynamic",
    )  # fmt: skip
    assert from_plain(plain) == parts
    trace = fw.Experiment("fedavg", system=str(tmp_path / "t.csv")).system
    assert trace == fw.system.Trace(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "fedacss"}, "There is no method 'fedacss'. Did you mean 'fedacs'?"),
        ({"method": fw.methods.fedavg}, "'method' parameter of Experiment must be a Method, or text such as 'fedacs'"),
        ({"partition": "dirichle:1"}, "Did you mean 'dirichlet'?"),
        ({"partition": 3}, "'partition' parameter of Experiment must be a Partition, or text such as"),
        ({"system": "dynamc"}, "Did you mean 'dynamic'?"),
        ({"data": "digts"}, "Did you mean 'digits'?"),
        (
            {"submodels": "half"},
            r"'submodels' parameter of Experiment must be shares in \(0, 1\] or models. Got 'half'",
        ),
    ],
)
def test_a_text_that_means_nothing_is_refused(given, words):
    with pytest.raises(fw.BadInput, match=words.replace("?", r"\?")):
        fw.Experiment(**{"method": "fedavg", **given})


def test_everything_wrong_is_told_at_once():
    with pytest.raises(fw.BadInput) as caught:
        fw.Experiment("fedacss", "digts", "dirichle:1", "cnnsmall", "dynamc", 0)
    assert len(caught.value.problems) == 6
    with pytest.raises(fw.BadInput) as caught:
        fw.Experiment("fedavg", epochs=1, steps=1, pool="ray", device="cuda")
    assert len(caught.value.problems) == 2


def test_a_comparison_takes_names(tiny):
    found = fw.compare(["fedavg", fw.methods.fedprox(3)], tiny(rounds=2))
    assert [r.summary["method"] for r in found.results] == ["fedavg", "fedprox"]
    assert found.results[0].experiment["method"]["sampler"]["per_round"] == 5
    with pytest.raises(fw.BadInput, match="no method 'fedprx'"):
        fw.compare(["fedprx"], tiny())


def as_of_0_1(path, *keys):
    """Rewrite the experiment in a JSON file, found under ``keys``, with the names of the first release."""
    content = json.loads(path.read_text())
    inner = content
    for key in keys:
        inner = inner[key]
    for new, old in OLD.items():
        inner[old] = inner.pop(new)
    path.write_text(json.dumps(content))


def test_a_run_of_the_first_release_is_read_but_not_continued(tiny, tmp_path):
    experiment = tiny(data="digits", rounds=2)
    digest = fw.run(experiment, tmp_path / "run").summary["digest"]
    as_of_0_1(tmp_path / "run" / "experiment.json")
    as_of_0_1(tmp_path / "run" / "manifest.json", "experiment")
    read = fw.load_result(tmp_path / "run")
    assert read.summary["digest"] == digest
    assert write([read], tmp_path / "page.html").stat().st_size > 1000
    assert all(path.is_file() for path in write_tables(read.folder, read.rounds, read.clients, "csv"))
    for given in (None, experiment):
        with pytest.raises(fw.BadInput, match="has no 'engine', 'longest', 'fewest'") as caught:
            fw.resume(tmp_path / "run", given)
        assert len(caught.value.problems) == 1


def test_a_comparison_of_the_first_release_is_not_continued(tiny, tmp_path):
    fw.compare(["fedavg"], tiny(data="digits", rounds=1), out=tmp_path / "c")
    as_of_0_1(tmp_path / "c" / "compare.json", "runs", "fedavg-seed0")
    with pytest.raises(fw.BadInput, match="Another version of fedweave began this run"):
        resume_comparison(tmp_path / "c")
