"""Parts of a user's own modules, named as module:name: found, recorded, trained everywhere, and trusted by request."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import fedweave as fw
from fedweave import report
from fedweave.cli import app as cli
from fedweave.cli.listing import list_
from fedweave.cli.options import experiments_of
from fedweave.core import plugins
from fedweave.core.roles import Solver
from fedweave.core.settings import BadInput
from fedweave.core.spec import build, describe
from fedweave.data.partition import Partition
from fedweave.engine.pool import zygote
from fedweave.runs.plain import from_plain, to_plain

OPTIONS = {
    "data": "mine:load", "model": "mine:net", "task": "mine:task", "partition": "mine:Halves", "system": "mine:Slow",
    "clients": "4", "per_round": "2", "rounds": "2", "steps": "2", "workers": "1",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a module ``mine`` in it that this process has not imported."""
    shutil.copy(Path(__file__).parents[1] / "plugin_module.py", tmp_path / "mine.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.setattr(plugins, "search_here", True)
    monkeypatch.setattr(plugins, "_found", set())
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def experiment(**changes):
    (found,), _ = experiments_of(["mine:quiet"], OPTIONS | changes)
    return found


def new_process(monkeypatch):
    """Forget what this process has imported."""
    monkeypatch.setattr(plugins, "_found", set())
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(Path.cwd())])
    sys.modules.pop("mine", None)


def problems(call, *arguments):
    with pytest.raises(BadInput) as caught:
        call(*arguments)
    return list(caught.value.problems)


def test_every_part_of_an_experiment_can_be_named(folder):
    found = experiment()
    assert found.method.name == "quiet"
    assert found.method.sampler == sys.modules["mine"].LongestSilent(2)
    assert found.partition == sys.modules["mine"].Halves(4)
    assert fw.run(found).summary["metric"] == "top_three"
    (named,), _ = experiments_of(["mine:everyone"], {})
    assert named.method == fw.Method(fw.sample.Everyone(), name="all_of_them")


def test_python_takes_the_same_strings(folder):
    found = fw.Experiment(
        "mine:quiet", "mine:load", partition="mine:Halves", model="mine:net", system="mine:Slow", task="mine:task"
    )
    assert found.partition.clients == fw.data.partition.CLIENTS
    assert found.method.sampler.per_round == 5
    assert len(fw.data.load("mine:load")) == 300
    base = experiment(rounds="1", clients="6")
    quiet, everyone = fw.compare(["mine:quiet", "mine:everyone"], base).results
    assert quiet.summary["digest"] == fw.run(experiment(rounds="1", clients="6", per_round="5")).summary["digest"]
    assert everyone.rounds["asked"].tolist() == [6]


def test_a_file_names_methods_and_types(folder):
    Path("one.toml").write_text('method = "mine:quiet"\nmodel = "mine:net"\n')
    Path("two.toml").write_text(
        '[method.sampler]\ntype = "mine:LongestSilent"\nper_round = 3\n[method.solver]\ntype = "mine:Clips"\n'
        '[partition]\ntype = "mine:Halves"\nclients = 4\n[system]\ntype = "mine:Slow"\nseconds = 2\n'
    )
    (one,), _ = experiments_of(["one.toml"], {})
    (two,), _ = experiments_of(["two.toml"], {})
    mine = sys.modules["mine"]
    assert (one.method.name, one.model) == ("quiet", "mine:net")
    assert two.method == fw.Method(mine.LongestSilent(3), solver=mine.Clips(), name="two")
    assert (two.partition, two.system) == (mine.Halves(4), mine.Slow(2))
    (changed,), _ = experiments_of(["two.toml"], {}, ["system.seconds=3", "method.solver.most=0.1"])
    assert (changed.system.seconds, changed.method.solver.most) == (3, 0.1)


def test_names_are_recorded_as_typed_and_classes_with_their_module(folder):
    plain = json.loads(json.dumps(to_plain(experiment())))
    assert [plain[field] for field in ("data", "model", "task")] == ["mine:load", "mine:net", "mine:task"]
    assert plain["method"]["sampler"] == {"type": "mine:LongestSilent", "per_round": 2}
    assert (plain["partition"]["type"], plain["system"]["type"]) == ("mine:Halves", "mine:Slow")
    assert plain["method"]["aggregator"]["type"] == "Mean", "ours keep their plain names"
    fw.compare(["mine:quiet"], replace(experiment(), rounds=1), out=folder / "c")
    assert json.loads((folder / "c/compare.json").read_text())["runs"]["quiet-seed0"]["data"] == "mine:load"


def test_a_part_of_ours_is_not_hidden_by_one_of_the_same_name(folder):
    (folder / "names.py").write_text(
        "import fedweave as fw\nfrom fedweave.core.roles import Sampler\n@fw.settings\nclass Uniform(Sampler):\n"
        "    def draw(self, state, view, rng): ...\n"
    )
    own = fw.Method(plugins.find("names:Uniform")())
    assert describe(own)["sampler"] == {"type": "names:Uniform"}
    assert build(fw.Method, describe(own), "method") == own
    ours = fw.methods.fedavg(3)
    assert build(fw.Method, describe(ours), "method") == ours


def test_a_class_by_its_name_alone_is_still_read(folder):
    """As runs of earlier versions, and of classes that cannot be imported, have it."""
    (folder / "older.py").write_text((folder / "mine.py").read_text().replace("Clips", "OldClips"))
    cls = plugins.find("older:OldClips")
    assert build(Solver, {"type": "OldClips"}, "solver") == cls()


def test_a_run_that_names_classes_without_their_modules_goes_on(stored):
    """As runs have it that began with an earlier version."""
    for file in (stored / "experiment.json", stored / "manifest.json"):
        file.write_text(file.read_text().replace('"mine:LongestSilent"', '"LongestSilent"'))
    other = replace(experiment(rounds="3"), method=fw.methods.fedavg(2))
    with pytest.raises(BadInput, match=r'method\.sampler\.type \("LongestSilent" then, "Uniform" now\)'):
        fw.resume(stored, other)
    assert fw.resume(stored, experiment(rounds="3")).summary["rounds"] == 3


def test_an_own_pacing_comes_back(folder):
    found = fw.Experiment("fedavg", pacing=fw.pacing.Synchronous(deadline=3))
    assert from_plain(json.loads(json.dumps(to_plain(found)))) == found


# Errors


WRONG = [
    (["mien:quiet"], {}, "There is no module 'mien'. Did you mean 'mine'? Otherwise write it as mien.py into the"),
    (["mine.deep:quiet"], {}, "There is no module 'mine.deep'."),
    (["mine:quite"], {}, "There is no 'quite' in mine. Did you mean 'quiet'?"),
    (["mine:quiet.deep"], {}, "There is no 'deep' in mine:quiet."),
    (["mine:number"], {}, "mine:number must be a Method, or a function that returns one. Got 3."),
    (["mine:net"], {}, "mine:net must return a Method. It returned 'Sequential("),
    (["mine:fails"], {}, "mine:fails failed: KeyError: 'no such thing' (mine.py:"),
    (["mine.py:quiet"], {}, "There is no module 'mine.py'."),
    (["./mine.py:quiet"], {}, "There is no method './mine.py:quiet'."),
    (["my-mine:quiet"], {}, "A plug-in is written module:name, such as"),
    (["broken:x"], {}, "The module broken cannot be imported: ZeroDivisionError: division by zero (broken.py:2)."),
    (["quits:x"], {}, "The module quits cannot be imported: SystemExit: 3 (quits.py:"),
    (["syntax:x"], {}, "The module syntax cannot be imported: SyntaxError: "),
    (["needs:x"], {}, "The module needs needs nowhere_else, which is not installed."),
    (["bad:x"], {}, "The module bad cannot be imported: The 'per_round' parameter of Uniform must be greater than 0."),
    (["fedavg"], {"model": "mine:number"}, "--model: mine:number must be a function or class that makes a torch mod"),
    (["fedavg"], {"model": "mine:nte"}, "--model: There is no 'nte' in mine. Did you mean 'net'?"),
    (["fedavg"], {"data": "mine:lod"}, "--data: There is no 'lod' in mine. Did you mean 'load'?"),
    (["fedavg"], {"partition": "mine:Slow"}, "--partition: mine:Slow must return a Partition. It returned Slow("),
    (["fedavg"], {"system": "mine:number"}, "--system: mine:number must be a System, or a function that returns one"),
    (["fedavg"], {"task": "mine:number"}, "--task: mine:number must be a Task, or a function that returns one. Got 3"),
    (["fedavg"], {"task": "mine-task:x"}, "--task: There is no task 'mine-task'."),
    (["wrong.toml"], {}, "wrong.toml:1: method.sampler: mine:Slow must be a class of Sampler, declared with @settings"),
]


@pytest.fixture
def mistakes(folder):
    """Modules and a file with a mistake each."""
    for name, text in {
        "broken.py": "x = 1\ny = 1 / 0\n",
        "quits.py": "import sys\nsys.exit(3)\n",
        "syntax.py": "x = = 1\n",
        "needs.py": "import nowhere_else\n",
        "bad.py": "import fedweave as fw\nx = fw.methods.fedavg(0)\n",
        "wrong.toml": '[method.sampler]\ntype = "mine:Slow"\n',
    }.items():
        (folder / name).write_text(text)


@pytest.mark.parametrize(("methods", "options", "why"), WRONG, ids=[str((*m, *o.values())) for m, o, _ in WRONG])
def test_a_mistake_is_one_sentence(methods, options, why, mistakes):
    (problem,) = problems(experiments_of, methods, options)
    assert why in problem
    assert "\n" not in problem


def test_mistakes_in_plug_ins_are_told_with_all_others(mistakes):
    found = problems(experiments_of, ["mine:quite", "broken:x"], {"model": "mine:nte", "rounds": "x"})
    assert len(found) == 4


def test_the_exception_of_a_module_is_the_cause(mistakes):
    with pytest.raises(BadInput) as caught:
        fw.Experiment("fedavg", model="broken:x")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_data_that_fails_to_load_is_one_sentence(folder):
    with pytest.raises(BadInput, match=r"^mine:fails failed: KeyError: 'no such thing' \(mine\.py:\d+\)\.$"):
        fw.run(experiment(data="mine:fails"))
    with pytest.raises(BadInput, match=r"^mine:net must return a Dataset\. It returned 'Sequential"):
        fw.run(experiment(data="mine:net"))


# Trust


@pytest.fixture
def stored(folder, monkeypatch):
    """A run that was interrupted after its first round, as another process finds it."""

    def watch(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fw.run(experiment(rounds="3"), folder / "run", watch)
    new_process(monkeypatch)
    return folder / "run"


def test_a_run_folder_alone_imports_nothing(stored, monkeypatch):
    (problem,) = problems(fw.resume, stored)
    assert problem == (
        "Plug-ins are not imported because a run folder names them: mine:load, mine:net, mine:task, "
        "mine:LongestSilent, mine:Clips, mine:Halves, mine:Slow. "
        "If you trust the folder, resume with --trust (in Python with trust=True)."
    )
    monkeypatch.setattr(report, "page", lambda results: "")  # drawing takes seconds
    cli.report(stored)
    cli.export(stored)
    assert "mine" not in sys.modules
    assert str(stored.parent) not in sys.path
    result = fw.resume(stored, trust=True)
    assert result.summary["digest"] == fw.run(experiment(rounds="3")).summary["digest"]
    assert fw.resume(stored).summary == result.summary, "this process has imported it meanwhile"


@pytest.mark.parametrize("field", ["data", "model", "task"])
def test_a_function_of_a_module_that_is_loaded_anyway_is_no_plug_in_of_a_run_folder(field):
    plain = to_plain(fw.Experiment("fedavg")) | {field: "os:abort"}
    (problem,) = problems(from_plain, plain)
    assert "Plug-ins are not imported because a run folder names them: os:abort. If you trust" in problem


def test_a_changed_plug_in_is_a_warning(stored):
    manifest = json.loads((stored / "manifest.json").read_text())
    assert list(manifest["plugins"]) == ["mine"]
    source = stored.parent / "mine.py"
    source.write_text(source.read_text() + "\n# changed\n")
    with pytest.warns(UserWarning, match=r"^Resuming with changed plug-ins, the results may differ: mine \(\"sha256:"):
        fw.resume(stored, trust=True)


@pytest.mark.filterwarnings("error")
def test_a_run_without_a_note_of_its_plug_ins_goes_on(stored):
    manifest = json.loads((stored / "manifest.json").read_text())
    del manifest["plugins"]
    (stored / "manifest.json").write_text(json.dumps(manifest))
    assert fw.resume(stored, trust=True).summary["rounds"] == 3


def test_a_python_task_or_class_that_cannot_be_imported_is_named(folder):
    plain = json.loads(json.dumps(to_plain(fw.Experiment("fedavg", task=fw.Task(loss=lambda output, batch: 0)))))
    with pytest.raises(BadInput, match="used a task given in Python: resume it there"):
        from_plain(plain, trust=True)


# Workers


@pytest.mark.parametrize("forks", [True, False])
def test_a_module_of_the_current_folder_trains_in_workers(forks, folder, monkeypatch):
    monkeypatch.setattr(zygote, "FORKS", forks and zygote.FORKS)
    assert fw.run(experiment(workers="2")).summary["digest"] == fw.run(experiment()).summary["digest"]


# Entry points


@pytest.fixture
def package(folder, monkeypatch):
    """An installed package with the module ``mine``, which offers plug-ins by entry points."""
    info = folder / "mine-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.2\n")
    kinds = {
        "methods": ("quiet", "quiet"), "models": ("dropped", "net"), "data": ("few", "load"), "tasks": ("top3", "task"),
        "partitions": ("halves", "Halves"), "systems": ("slow", "Slow"),
    }  # fmt: skip
    lines = [f"[fedweave.{kind}]\n{name} = mine:{attribute}" for kind, (name, attribute) in kinds.items()]
    (info / "entry_points.txt").write_text("\n".join([*lines, "[fedweave.models]", "logistic = mine:fails", ""]))
    monkeypatch.syspath_prepend(str(folder))
    return {kind: name for kind, (name, _) in kinds.items()}


def test_installed_plug_ins_have_plain_names(package, monkeypatch):
    options = {"data": "few", "model": "dropped", "task": "top3", "partition": "halves", "system": "slow"}
    (found,), _ = experiments_of(["quiet"], OPTIONS | options)
    assert found == replace(experiment(), task=found.task)
    assert to_plain(found) == to_plain(experiment()), "the modules are recorded, whatever their names stand for"
    assert fw.Experiment("fedavg", model="logistic").model == "logistic", "ours are not replaced"
    assert plugins.fingerprints(to_plain(found))["mine"].startswith("1.2 sha256:")
    assert "Did you mean 'dropped'?" in problems(experiments_of, ["fedavg"], {"model": "droped"})[0]
    plain = to_plain(fw.Experiment("fedavg")) | {"model": "dropped"}
    new_process(monkeypatch)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    (problem,) = problems(from_plain, plain)
    assert "not imported because a run folder names them: mine:net. If you trust" in problem
    assert "mine" not in sys.modules


def test_list_shows_tasks_and_installed_plug_ins_without_importing_them(package, capsys):
    list_("tasks")
    assert "next_token" in (said := capsys.readouterr().out)
    assert "top3" in said
    list_(json=True)
    known = json.loads(capsys.readouterr().out)
    for kind, name in package.items():
        assert known[kind][name].startswith("plug-in: mine:")
    assert "plug-in" not in known["models"]["logistic"]
    assert set(known["tasks"]) == {"classification", "regression", "next_token", "top3"}
    assert "mine" not in sys.modules


def test_a_partition_may_be_an_instance_or_have_a_number_of_its_own(folder):
    (folder / "parts.py").write_text(
        "import mine, fedweave as fw\nthree = mine.Halves(3)\n@fw.settings\nclass Seven(mine.Partition):\n"
        "    clients: int = 7\n    split = mine.Halves.split\n"
    )
    assert fw.Experiment("fedavg", partition="parts:three").partition.clients == 3
    assert fw.Experiment("fedavg", partition="parts:Seven").partition.clients == 7
    assert isinstance(fw.Experiment("fedavg", partition="parts:three").partition, Partition)
    (given,), _ = experiments_of(["fedavg"], {"partition": "parts:Seven", "per_round": "30"})
    assert given.partition.clients == 7
