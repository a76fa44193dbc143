"""What users type becomes an experiment, or every mistake in it is told at once, where it was written."""

import inspect

import pytest

import fedweave as fw
from fedweave import methods, schedule
from fedweave.cli.options import OPTIONS, experiments_of, line_of, options_table
from fedweave.core.settings import BadInput
from fedweave.runs.method_names import method_names
from fedweave.system.names import SYSTEMS


def problems(call, *args):
    with pytest.raises(BadInput) as caught:
        call(*args)
    return list(caught.value.problems)


def one(typed=(), method="fedavg"):
    """Return the experiment of what was typed."""
    (experiment,), _ = experiments_of([method], dict(typed))
    return experiment


@pytest.fixture
def toml(tmp_path, monkeypatch):
    """Return a writer of experiment files into the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="exp.toml"):
        (tmp_path / name).write_text(text)
        return name

    return write


def test_text_becomes_values():
    e = one({"rounds": "7", "lr": "0.1", "workers": "2", "clients": "9", "target": "0.5"})
    assert (e.rounds, e.lr, e.workers, e.partition.clients, e.target) == (7, 0.1, 2, 9, 0.5)
    assert one({"workers": "auto"}).workers == "auto"


def test_the_command_line_and_python_have_the_same_defaults():
    assert one() == fw.Experiment("fedavg")
    assert one({"per_round": "10"}) == fw.Experiment(fw.methods.fedavg())
    assert one({"clients": "7"}).partition == fw.partition.Auto(7)
    assert one({"partition": "natural"}).partition == fw.partition.Natural()
    assert experiments_of(["fedavg"], {})[1].seeds == 1


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("data", "digts", ["--data", "'digts'", "Did you mean 'digits'?", "folder of images"]),
        ("partition", "dirichle:0.1", ["--partition", "'dirichle'", "Did you mean 'dirichlet'?", "shards:K"]),
        ("partition", "dirichlet:x", ["--partition", "'x'", "dirichlet:ALPHA"]),
        ("partition", "dirichlet:0", ["--partition", "greater than 0", "'0'"]),
        ("partition", "dirichlet", ["--partition", "lacks a value", "dirichlet:ALPHA"]),
        ("partition", "iid:3", ["--partition", "'iid:3'", "too many values"]),
        ("partition", "classes:5-2", ["--partition", "at least low = 5", "2"]),
        ("clients", "many", ["--clients", "whole number", "'many'"]),
        ("clients", "0", ["--clients", "greater than 0", "'0'"]),
        ("per_round", "x", ["--per-round", "whole number", "'x'"]),
        ("per_round", "21", ["--per-round", "--clients (20)", "21"]),
        ("model", "cnnsmall", ["--model", "'cnnsmall'", "Did you mean 'cnn_small'?"]),
        ("system", "dynamc", ["--system", "'dynamc'", "Did you mean 'dynamic'?", "TRACE.csv"]),
        ("system", "nowhere.csv", ["--system", "nowhere.csv'", "columns client, round"]),
        ("rounds", "-3", ["--rounds", "greater than 0", "'-3'"]),
        ("rounds", "2.5", ["--rounds", "whole number", "'2.5'"]),
        ("epochs", "0", ["--epochs", "greater than 0", "'0'"]),
        ("epochs", "inf", ["--epochs", "finite", "'inf'"]),
        ("steps", "1.5", ["--steps", "whole number", "'1.5'"]),
        ("steps", str(10**30), ["--steps", "less than"]),
        ("batch_size", "0", ["--batch-size", "greater than 0", "'0'"]),
        ("batch_size", str(10**30), ["--batch-size", "less than"]),
        ("lr", "fast", ["--lr", "valid number", "'fast'"]),
        ("lr", "nan", ["--lr", "finite", "'nan'"]),
        ("lr", "inf", ["--lr", "finite", "'inf'"]),
        ("weights", "dat", ["--weights", "'data' or 'equal'", "'dat'"]),
        ("target", "90%", ["--target", "valid number", "'90%'"]),
        ("evaluate_every", "0", ["--evaluate-every", "greater than 0", "'0'"]),
        ("seed", "-1", ["--seed", "greater than or equal to 0", "'-1'"]),
        ("seed", str(2**200), ["--seed", "less than"]),
        ("seeds", "0", ["--seeds", "greater than 0", "'0'"]),
        ("pool", "roy", ["--pool", "'local' or 'ray'", "'roy'"]),
        ("workers", "0", ["--workers", "greater than 0 or 'auto'", "'0'"]),
        ("workers", "all", ["--workers", "whole number or 'auto'", "'all'"]),
        ("device", "gpu", ["--device", "'auto', 'cpu' or 'cuda'", "'gpu'"]),
        ("tables", "tape", ["--tables", "'ram' or 'disk'", "'tape'"]),
        ("start", "model.onnx", ["--start", ".safetensors, .pt or .pth", "'model.onnx'"]),
        ("start", "nowhere.pt", ["--start", "no start file", "nowhere.pt"]),
        ("pacing", "buffered:5", ["--pacing", "buffered:CONCURRENCY:BUFFER", "'buffered:5'"]),
        ("pacing", "buffered:5:x", ["--pacing", "'buffer' parameter", "whole number", "'x'"]),
        ("pacing", "buffered:5:6", ["--pacing", "at most the concurrency, 5", "6"]),
        ("adversary", "sign-flip:2", ["--adversary", "less than or equal to 1", "'2'"]),
        ("upload", "topk:2", ["--upload", "less than or equal to 1", "'2'"]),
        ("upload", "ef:quantized:9", ["--upload", "less than or equal to 8", "'9'"]),
        ("ronds", "3", ["'--ronds'", "Did you mean 'rounds'?"]),
    ],
)
def test_every_option_says_its_name_the_value_and_what_is_allowed(name, value, words):
    found = problems(one, {name: value})
    assert all(word in "\n".join(found) for word in words)
    assert all(words[0] in problem for problem in found)


def test_single_mistakes_and_contradictions_are_told_together():
    found = problems(
        one,
        {"rounds": "x", "data": "digts", "epochs": "1", "steps": "2", "clients": "3", "per_round": "4", "ronds": "1"},
    )
    assert len(found) == 5
    for words in ("--ronds", "--rounds", "--data", "--epochs and --steps exclude each other", "--clients (3). Got 4"):
        assert sum(words in problem for problem in found) == 1


WRONG = {
    "data": "digts", "partition": "dirichle:1", "clients": "x", "per_round": "0", "model": "cnnsmall",
    "system": "dynamc", "rounds": "-3", "epochs": "inf", "steps": "1.5", "batch_size": "0", "lr": "fast",
    "weights": "dat", "target": "90%", "evaluate_every": "0", "seed": "-1", "seeds": "0", "workers": "all",
    "device": "gpu", "tables": "tape", "calibrate": "perhaps", "true_gradients": "?", "submodels": "half",
    "pool": "spark", "max_length_ratio": "0", "deadline": "soon", "over_selection": "0.5", "answers": "0",
    "min_answers": "-1", "failures": "ignore", "quarantine": "0", "audit": "maybe", "task": "regresion",
    "evaluate": "trian", "client_eval": "0", "stop_at_target": "soon", "patience": "0", "validation": "1",
    "start": "model.onnx", "stop_after": "0",
    "adversary": "sign-flop:0.2", "roll": "-1", "pacing": "buffered:5", "upload": "topc:0.1",
}  # fmt: skip


@pytest.mark.parametrize("where", ["typed", "file"])
def test_every_option_wrong_at_once_is_one_list_of_all_of_them_before_data_is_read(where, toml, monkeypatch):
    def load(*_, **__):
        raise AssertionError("data was read")

    monkeypatch.setattr(fw.data, "load", load)
    assert OPTIONS.keys() == WRONG.keys(), "an option that no test makes wrong"
    wrong = {**WRONG, "ronds": "3"}
    if where == "file":
        name = toml("".join(f"{k} = {v!r}\n" for k, v in wrong.items()))
        found = problems(experiments_of, [name], {})
        for line, key in enumerate(wrong, 1):
            assert sum(f"{name}:{line}: {key}" in p for p in found) == 1, key
    else:
        found = problems(experiments_of, ["fedavgg"], wrong, ["nothing"])
        for key in wrong:
            assert sum(f"--{key.replace('_', '-')}" in p for p in found) >= 1, key
        assert sum("fedavgg" in p or "PATH=VALUE" in p for p in found) == 2
    for close in ("digits", "dirichlet", "cnn_small", "dynamic", "rounds"):
        assert sum(f"Did you mean {close!r}?" in p for p in found) == 1


def test_ray_and_a_gpu_exclude_each_other():
    (found,) = problems(one, {"pool": "ray", "device": "cuda"})
    assert found.startswith("--pool ray trains on CPUs: use --device cpu")
    assert one({"pool": "ray"}).pool == "ray"


def test_natural_clients_are_as_many_as_the_data_says():
    assert one({"partition": "natural", "per_round": "25"}).method == fw.methods.fedavg(25)


def test_every_listed_method_and_system_can_be_asked_for():
    defined = [n for n, f in inspect.getmembers(methods, inspect.isfunction) if f.__module__ == methods.__name__]
    assert list(method_names()) == [name for name in defined if name != "fedmd"]
    assert all(method_names().values()), "a method without a line about it"
    grouped = [name for _, names in methods.GROUPS.values() for name in names.split()]
    assert sorted(grouped) == sorted(method_names()), "every method belongs into one of methods.GROUPS"
    for name in method_names():
        (experiment,), _ = experiments_of([name], {"per_round": "2"})
        assert experiment.method == getattr(methods, name)(2)
    for name in SYSTEMS:
        (experiment,), _ = experiments_of(["fedavg"], {"system": name})
        assert isinstance(experiment.system, fw.system.worlds.System)


def test_typed_options_reach_the_experiment():
    typed = {
        "data": "digits", "partition": "classes:2-5", "clients": "8", "per_round": "3", "model": "mlp",
        "system": "lognormal", "rounds": "4", "epochs": "0.5", "batch_size": "6", "lr": "0.2",
        "calibrate": "true", "weights": "equal",
        "target": "0.8", "evaluate_every": "2", "seed": "5", "pool": "ray", "workers": "1", "device": "cpu",
        "tables": "disk", "true_gradients": "true", "submodels": "1,0.5",
    }  # fmt: skip
    (experiment,), _ = experiments_of(["fedprox"], typed)
    assert experiment == fw.Experiment(
        fw.methods.fedprox(3), "digits", fw.partition.Classes(8, 2, 5), "mlp",
        fw.system.Latency.heavy_tailed(), 4, 0.2, 0.5, None, 6,
        True, "equal", 0.8, 2, 5, "ray", 1, "cpu", "disk", True, (1.0, 0.5),
    )  # fmt: skip


def test_any_field_is_set_by_its_path():
    (experiment,), _ = experiments_of(
        ["fedprox"],
        {"partition": "dirichlet:0.5"},
        ["method.solver.mu=0.5", "partition.alpha=2", "method.solver.inner.momentum=0.9"],
    )
    assert experiment.method.solver == fw.solvers.Prox(0.5, fw.solvers.SGD(momentum=0.9))
    assert experiment.partition.alpha == 2


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("method.solver.mu", ["--set takes PATH=VALUE", "'method.solver.mu'"]),
        ("method.solver.mo=1", ["--set", "'method.solver.mo'", "Did you mean 'method.solver.mu'?"]),
        ("=1", ["--set", "no field ''"]),
        ("method.solver.mu=-1", ["--set", "method.solver", "'mu'", "greater than or equal to 0", "-1"]),
        ("method.solver.mu=", ["--set", "'mu'", "valid number", "''"]),
        ("rounds=many", ["--set", "'rounds'", "whole number", "'many'"]),
        ("method.sampler=3", ["--set", "'sampler'", "Sampler", "3"]),
        ("system.seconds=NaN", ["--set", "'seconds'", "finite"]),
    ],
)
def test_a_wrong_assignment_is_named(assignment, words):
    (problem,) = problems(experiments_of, ["fedprox"], {}, [assignment])
    assert all(word in problem for word in words)


def test_an_assignment_may_be_for_some_methods():
    given = ["fedprox,fedavgm:method.lr=0.2", "fedprox:method.solver.mu=0.5", "rounds=7"]
    avg, prox, momentum = experiments_of(["fedavg", "fedprox", "fedavgm"], {}, given)[0]
    assert [e.method.lr for e in (avg, prox, momentum)] == [None, 0.2, 0.2]
    assert (prox.method.solver.mu, prox.rounds, avg.rounds) == (0.5, 7, 7)


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("method.solver.mu=1", ["fedavg has no field 'method.solver.mu'", "that have it: fedprox:method.solver.mu"]),
        ("fedprx:method.solver.mu=1", ["'fedprx' is none of the methods. Did you mean 'fedprox'?"]),
        ("fedprox:lr=1", ["--set fedprox:lr: only fields of methods", "such as method.lr"]),
    ],
)
def test_an_assignment_that_does_not_fit_all_methods_says_how_it_would(assignment, words):
    (problem,) = problems(experiments_of, ["fedavg", "fedprox"], {}, [assignment])
    assert all(word in problem for word in words), problem


def test_wrong_method_wrong_assignment_and_wrong_option_are_told_together():
    found = problems(experiments_of, ["fedavgg", "fedprx"], {"rounds": "0"}, ["nothing"])
    assert len(found) == 4
    assert "Did you mean 'fedavg'?" in found[0]
    assert "Did you mean 'fedprox'?" in found[1]


FILE = """
data = "digits"
partition = "dirichlet:0.3"
clients = 8
per-round = 3     # as on the command line
batch_size = 7
rounds = 4
seed = 2

[method]
name = "mine"
[method.sampler]
type = "Uniform"
per_round = 2
[method.solver]
type = "Prox"
mu = 0.5
inner = { type = "SGD", momentum = 0.5 }
[method.server]
type = "Yogi"
"""


def test_a_file_composes_a_method_and_sets_options(toml):
    (experiment,), _ = experiments_of([toml(FILE)], {})
    assert experiment == fw.Experiment(
        fw.Method(
            fw.sample.Uniform(2),
            fw.solvers.Prox(0.5, fw.solvers.SGD(momentum=0.5)),
            server=fw.server.Yogi(),
            name="mine",
        ),
        "digits",
        fw.partition.Dirichlet(8, 0.3),
        rounds=4,
        batch_size=7,
        seed=2,
    )


def test_a_composed_method_is_called_after_its_file(toml):
    name = toml('data = "digits"\n[method.sampler]\ntype = "Everyone"\n', "trial.toml")
    (experiment,), _ = experiments_of([name], {})
    assert experiment.method == fw.Method(fw.sample.Everyone(), name="trial")


def test_what_is_typed_overrides_the_file(toml):
    (experiment,), _ = experiments_of([toml(FILE)], {"rounds": "9", "seed": "1"}, ["method.solver.mu=0.1"])
    assert (experiment.rounds, experiment.seed, experiment.partition.clients) == (9, 1, 8)
    assert experiment.method.solver.mu == 0.1


def test_a_file_may_name_a_method(toml):
    (experiment,), _ = experiments_of([toml('method = "fedyogi"\nper_round = 3\n')], {})
    assert experiment.method == fw.methods.fedyogi(3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('method = "fedavgg"\n', ["exp.toml:1", "'fedavgg'", "Did you mean 'fedavg'?"]),
        ('rounds = 3\nmethod = "server"\n', ["exp.toml:2", "no method 'server'"]),
        ("method = 3\n", ["exp.toml:1", "no method 3"]),
        ('method = ["fedavg"]\n', ["exp.toml:1", "no method ['fedavg']"]),
        ("\nronds = 3\n", ["exp.toml:2: ronds", "Did you mean 'rounds'?"]),
        ("rounds = 3\n\nper-round = 0\n", ["exp.toml:3: per_round", "greater than 0", "Got 0"]),
        ('rounds = "x"\n', ["exp.toml:1: rounds", "whole number", "'x'"]),
        ('system = "dynamc"\n', ["exp.toml:1: system", "Did you mean 'dynamic'?"]),
        ("clients = 3\nper-round = 4\n", ["exp.toml:2: per_round", "exp.toml:1: clients (3)", "Got 4"]),
        ("[system]\ntype = 3\n", ["exp.toml:1: system", "text such as 'dynamic'", "{'type': 3}"]),
        ('[method.sampler]\ntype = "Unifrm"\n', ["exp.toml:1", "method.sampler", "Did you mean 'Uniform'?"]),
        (
            '[method]\nname = "a"\n[method.sampler]\ntype = "Uniform"\nper_round = 0\n',
            ["exp.toml:1", "method.sampler", "'per_round'", "greater than 0"],
        ),
        ('[method]\nname = "a"\n', ["exp.toml:1", "'sampler'", "required"]),
        ("rounds = = 3\n", ["exp.toml", "line 1"]),
    ],
)
def test_a_mistake_in_a_file_is_told_by_its_line(toml, text, words):
    (problem,) = problems(experiments_of, [toml(text)], {})
    assert all(word in problem for word in words)


def test_a_mistake_that_was_typed_is_not_blamed_on_the_file(toml):
    name = toml("rounds = 3\n")
    assert problems(experiments_of, [name], {"rounds": "x", "lr": "y"}) == [
        "--rounds must be a whole number. Got 'x' instead.",
        f"--lr must be a valid number, or a schedule such as {schedule.FORMS}. Got 'y' instead.",
    ]


def test_all_mistakes_of_a_file_are_told_at_once(toml):
    name = toml('ronds = 3\nlr = "x"\ndata = "digts"\n[method.sampler]\ntype = "Unifrm"\n')
    assert len(problems(experiments_of, [name], {"target": "high"})) == 5


def test_a_file_that_is_missing_or_not_text_is_named(toml, tmp_path):
    (missing,) = problems(experiments_of, ["nowhere.toml"], {})
    assert "'nowhere.toml' cannot be read: No such file" in missing
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    (unreadable,) = problems(experiments_of, ["bad.toml"], {})
    assert unreadable.startswith("bad.toml: ")


def test_a_key_is_found_on_its_line(toml, tmp_path):
    where = line_of(tmp_path / toml('# rounds = 1\nrounds=2\n"x" = 1\nbatch-size = 3\n[method.sampler]\n'))
    assert [where(k).removeprefix(str(tmp_path)) for k in ("rounds", "batch_size", "method", "lr")] == [
        "/exp.toml:2: rounds",
        "/exp.toml:4: batch_size",
        "/exp.toml:5: method",
        "/exp.toml: lr",
    ]


@pytest.mark.parametrize(
    ("old", "text", "new", "value"),
    [("longest", "50", "max_length_ratio", 50), ("fewest", "3", "min_answers", 3), ("engine", "ray", "pool", "ray")],
)
def test_old_names_of_options_still_work_with_a_warning(old, text, new, value, toml, capsys):
    written, line = f"--{new.replace('_', '-')}", "is now called"
    assert getattr(one({old: text}), new) == value
    assert capsys.readouterr().err.startswith(f"warning: --{old} {line} {written};")
    assert getattr(one(method=toml(f"rounds = 3\n{old} = {text!r}\n")), new) == value
    assert capsys.readouterr().err.startswith(f"warning: exp.toml:2: {old} {line} {new};")
    (experiment,), _ = experiments_of(["fedavg"], {}, [f"{old}={text}"])
    assert getattr(experiment, new) == value
    assert capsys.readouterr().err.startswith(f"warning: --set {old} {line} {new};")
    assert getattr(one({new: text}), new) == value
    assert capsys.readouterr().err == ""
    assert old not in options_table()


def test_an_old_name_is_named_as_it_was_written_and_excludes_the_new_one(toml, capsys):
    assert problems(one, {"fewest": "-1"}) == ["--fewest must be greater than or equal to 0. Got '-1' instead."]
    (found,) = problems(experiments_of, [toml("\nfewest = -1\n")], {})
    assert found.startswith("exp.toml:2: fewest must be")
    both, wrong = problems(one, {"fewest": "1", "min_answers": "2", "rounds": "x"})
    assert both == "--fewest and --min-answers are the same option: give one of them."
    assert wrong.startswith("--rounds must be")
    assert one({"min_answers": "4"}, toml("fewest = 3\n")).min_answers == 4  # what is typed overrides the file


def test_an_old_name_of_a_method_still_works_with_a_warning(toml, capsys):
    for method in ("fedmd", toml('method = "fedmd"\n')):
        assert one({"per_round": "4"}, method).method == fw.methods.fedavg_md(4)
        assert capsys.readouterr().err.startswith("warning: the method fedmd is now called fedavg_md;")


@pytest.mark.parametrize("name", OPTIONS)
def test_the_example_of_an_option_works(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / OPTIONS["start"].example).touch()
    needed = {"roll": {"submodels": "1,0.5"}, "stop_at_target": {"target": 0.9}}.get(name, {})
    (experiment,), _ = experiments_of(["fedavg"], {name: OPTIONS[name].example, **needed})
    default = fw.Experiment("fedavg", **needed)
    assert experiment != default or name == "seeds", "an example of the default shows nothing"


def test_nesting_without_end_is_one_sentence(tmp_path):
    file, deep = tmp_path / "deep.toml", "[" * 50_000
    file.write_text(f"rounds = {deep}")
    for given in ([str(file)], {}), (["fedavg"], {}, [f"rounds={deep}"]):
        with pytest.raises(BadInput, match=r"deep\.toml|rounds"):
            experiments_of(*given)
