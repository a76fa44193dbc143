"""The command line keeps its promises: exit codes, one JSON object, every mistake at once, nothing left behind."""

import csv
import html
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from html import unescape
from pathlib import Path

import pytest

import fedweave as fw
from fedweave import methods
from fedweave.cli import app as cli
from fedweave.cli import common
from fedweave.cli import sweep as sweep_command
from fedweave.cli.options import OPTIONS, experiments_of
from fedweave.cli.output import beside_progress
from fedweave.cli.parameters import Talk
from fedweave.core.records import Failure
from fedweave.core.settings import BadInput
from fedweave.runs import loop as running
from fedweave.runs.callbacks import Callback, Running
from fedweave.runs.method_names import method_names
from fedweave.runs.progress import Show

TINY = shlex.split("--data digits --clients 6 --per-round 3 --rounds 3 --system dynamic --workers 1")
pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")
COMMANDS = ("list", "run", "compare", "sweep", "resume", "report", "export", "doctor")
PROMISED = {
    "method", "rounds", "accuracy", "best_accuracy", "loss", "rounds_to_target", "seconds_to_target",
    "simulated_seconds", "wall_seconds", "bytes_up", "bytes_down", "run", "digest",
}  # fmt: skip


@pytest.fixture
def fedweave(tmp_path, monkeypatch, capsys):
    """Return the program, called in this process: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    handler = signal.getsignal(signal.SIGTERM)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedweave", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    yield call
    signal.signal(signal.SIGTERM, handler)


def program(*words, cwd, **options):
    """Start the program as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedweave", *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.fixture
def inputs(tmp_path):
    """Lay out the files that the bad inputs speak of, and return their names."""
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.txt").write_text("mine")
    files = {
        "file": "mine",
        "broken.toml": "rounds = = 3\n",
        "unknown.toml": '# comment\ndata = "digits"\nronds = 3\n',
        "nomethod.toml": 'method = "fedavgg"\n',
        "wrongpart.toml": '[method.sampler]\ntype = "Unifrm"\n',
        "bad.csv": "client,steps\n0,1\nx,-2\n",
        "column.csv": "clint,steps\n0,1\n",
        "many.csv": "client,steps\n0,1\n99,2\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)


BAD = {  # what is typed, and words of which each must be on the error stream
    "run": ["METHOD"],
    "runn fedavg": ["runn", "run"],
    "run fedavgg": ["fedavgg", "Did you mean 'fedavg'?"],
    "run fedavg fedprox": ["Unexpected argument 'fedprox'"],
    "run fedavg -x": ["-x"],
    "run fedavg --ronds 3": ["--ronds", "Did you mean '--rounds'?"],
    "run fedavg --batch 3": ["--batch", "Did you mean '--batch-size'?"],
    "run fedavg --set epochs=1e300": ["'epochs'", "1000000", "1e+300"],
    "run fedavg --set lr=1e300": ["'lr'", "1e+38", "1e+300"],
    "run fedavg --set steps=1e9": ["'steps'", "1000000"],
    "run fedavg --system dynamic --epochs 2": ["--epochs has no effect under Dynamic"],
    "run fedavg --partition shards": ["--partition", "lacks a value", "shards:K"],
    "run fedavg --data digits --model mlp --submodels 1,0.001": ["share 0.001", "0.015625"],
    "run fedavg --rounds": ["--rounds", "requires an argument"],
    "run fedavg --rounds x": ["--rounds", "'x'", "whole number"],
    "run fedavg --rounds=0": ["--rounds", "'0'", "greater than 0"],
    "run fedavg --rounds 1 --rounds 2": ["--rounds", "multiple times"],
    "run fedavg --data digts": ["--data", "'digts'", "Did you mean 'digits'?"],
    "run fedavg --partition dirichle:1": ["--partition", "'dirichle'", "Did you mean 'dirichlet'?"],
    "run fedavg --partition shards:0": ["--partition", "'0'", "greater than 0"],
    "run fedavg --clients none": ["--clients", "'none'", "whole number"],
    "run fedavg --per-round 0": ["--per-round", "'0'", "greater than 0"],
    "run fedavg --clients 5 --per-round 6": ["--per-round", "--clients (5)", "Got 6"],
    "run fedavg --model cnnsmall": ["--model", "'cnnsmall'", "Did you mean 'cnn_small'?"],
    "run fedavg --data people.csv": ["--data", "'people.csv'", "module:name", "from_frame"],
    "run fedavg --data digits --model lenet5": ["'lenet5'", "(1, 8, 8)", "Models that fit: logistic"],
    "run fedavg --system dynamc": ["--system", "'dynamc'", "Did you mean 'dynamic'?"],
    "run fedavg --system nowhere.csv": ["--system", "nowhere.csv", "columns client"],
    "run fedavg --system bad.csv": ["--system", "bad.csv:3: the column 'client'", "'x'", "column 'steps'", "'-2'"],
    "run fedavg --system column.csv": ["--system", "column.csv:1", "'clint'", "Did you mean 'client'?"],
    "run fedavg --data digits --system many.csv": ["many.csv", "client 99", "only 20 clients"],
    "run fedavg --epochs 0": ["--epochs", "'0'", "greater than 0"],
    "run fedavg --epochs inf": ["--epochs", "'inf'", "finite"],
    "run fedavg --steps 1.5": ["--steps", "'1.5'", "whole number"],
    "run fedavg --epochs 1 --steps 1": ["--epochs", "--steps", "exclude each other"],
    "run fedavg --batch-size 0": ["--batch-size", "'0'", "greater than 0"],
    "run fedavg --lr fast": ["--lr", "'fast'", "number"],
    "run fedavg --weights dat": ["--weights", "'dat'", "'data' or 'equal'"],
    "run fedavg --target 90": ["target", "90", "from 0 to 1"],
    "run fedavg --evaluate-every 0": ["--evaluate-every", "'0'", "greater than 0"],
    "run fedavg --seed -1": ["--seed", "'-1'", "greater than or equal to 0"],
    "run fedavg --seeds 2 --data digits": ["--seeds", "compare"],
    "run fedavg --workers some": ["--workers", "'some'", "'auto'"],
    "run fedavg --device gpu": ["--device", "'gpu'", "'auto', 'cpu' or 'cuda'"],
    "run fedavg --set method.sampler.per_round": ["--set", "PATH=VALUE", "'method.sampler.per_round'"],
    "run fedavg --set method.sampler.per_rond=3": ["--set", "per_rond", "Did you mean 'method.sampler.per_round'?"],
    "run fedavg --set method.sampler.per_round=0": ["--set", "'per_round'", "greater than 0", "Got 0"],
    "run fedavg --set rounds=many": ["--set", "'rounds'", "'many'", "whole number"],
    "run nowhere.toml": ["nowhere.toml", "No such file"],
    "run broken.toml": ["broken.toml", "line 1"],
    "run unknown.toml": ["unknown.toml:3: ronds", "Did you mean 'rounds'?"],
    "run nomethod.toml": ["nomethod.toml:1", "'fedavgg'", "Did you mean 'fedavg'?"],
    "run wrongpart.toml": ["wrongpart.toml:1", "method.sampler", "Did you mean 'Uniform'?"],
    "run fedavg --data digits --out used": ["'used'", "not empty", "another --out"],
    "run fedavg --data digits --out file": ["'file'", "already exists"],
    "run fedavg --data digits --out file/run": ["'file/run'", "cannot be written"],
    "compare fedavg --data digits --out used": ["'used'", "not empty"],
    "compare fedavg --data digits --out file/run": ["'file/run'", "cannot be written"],
    "compare fedavg fedavg --data digits": ["Two methods", "'fedavg'"],
    "compare fedavg fedprx": ["'fedprx'", "Did you mean 'fedprox'?"],
    "compare fedavg --ronds 3 --lr x --fast --no=1": ["'--ronds'", "'--fast'", "'--no'", "--lr"],
    "compare fedavg -x": ["'-x'"],
    "compare fedavg --over lr=1": ["compare has no option '--over', which belongs to sweep."],
    "compare fedavg --seeds 0": ["--seeds", "'0'", "greater than 0"],
    "resume used --epochs 10": ["resume has no option '--epochs'", "with the settings it began with"],
    "resume used --set lr=1": ["resume has no option '--set'", "with the settings it began with"],
    "reproduce fedacs/fig7 --rounds 3": [
        "reproduce has no option '--rounds', which belongs to run, compare and sweep."
    ],
    "resume": ["requires an argument"],
    "resume used --rounds 4.6": ["--rounds must be a whole number of at least 1. Got '4.6' instead."],
    "resume used --rounds 0": ["--rounds must be a whole number of at least 1. Got '0' instead."],
    "resume used --rounds x --track tensorbord:x": ["--rounds", "'x'", "'tensorbord'"],
    "resume used --round 4 --track mlflw": ["no option '--round'", "'mlflw'"],
    "run fedavg --track tensorboard --epochs x --rounds 0": ["--track tensorboard needs a folder", "--epochs", "'0'"],
    "run fedavg --plan p.json --per-round 3 --epochs x": ["exclude each other", "--epochs"],
    "compare fedavg --at-once 1.5 --epochs x": ["--at-once must be a whole number of at least 1", "'1.5'", "--epochs"],
    "compare fedavg --at-once 0": ["--at-once must be a whole number of at least 1", "'0'"],
    "flower demo --nodes 2.5 --seed x": ["--nodes must be a whole number from 2 to 64", "'2.5'", "--seed", "'x'"],
    "flower demo --kill 0.5 --per-round 1.5": ["--kill", "'0.5'", "--per-round", "'1.5'"],
    "flower keys k --host a --nodes 1.5 --days 0": ["--nodes", "'1.5'", "--days must be", "'0'"],
    "resume nowhere": ["There is no folder 'nowhere'"],
    "resume used": ["'used'", "not a run folder"],
    "report": ["at least one run folder"],
    "report used": ["'used'", "not a run folder"],
    "export nowhere": ["There is no folder 'nowhere'"],
    "export used --to xls": ["--to", "xls", "csv", "parquet"],
    "list metods": ["metods", "methods"],
    "list --jsn": ["--jsn", "Did you mean", "--json"],
}


@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize(("typed", "words"), BAD.items(), ids=list(BAD))
def test_bad_input_is_told_on_stderr_with_code_2_and_nothing_is_left(typed, words, fedweave, tmp_path):
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    code, out, err = fedweave(*shlex.split(typed))
    assert (code, out) == (2, "")
    assert all(line.startswith("error: ") for line in err.splitlines())
    assert all(word in err for word in words), err
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "typed", ["run fedavg --hush", "run fedavg --gpu", "run fedavg --resume", "resume r --rounds 9"]
)
def test_nothing_is_suggested_that_is_not_close(typed, fedweave):
    code, _, err = fedweave(*shlex.split(typed))
    assert code == 2
    assert "Did you mean" not in err
    assert len(err.splitlines()) == 1


def test_several_mistakes_are_told_at_once(fedweave, tmp_path):
    typed = "run fedavgg --ronds 3 --data digts --lr x --epochs 1 --steps 2 --per-round 9 --clients 4 --set nothing"
    code, out, err = fedweave(*shlex.split(typed))
    assert (code, out) == (2, "")
    words = ("'fedavgg'", "--ronds", "--data", "--lr", "exclude each other", "--clients (4)", "PATH=VALUE")
    assert [sum(word in line for line in err.splitlines()) for word in words] == [1] * 7
    assert len(err.splitlines()) == 7
    assert not list(tmp_path.iterdir())


def test_the_program_itself_refuses_bad_input(tmp_path):
    bad = program("run", "fedavg", "--ronds", "3", "--lr", "x", cwd=tmp_path)
    out, err = bad.communicate(timeout=60)
    assert (bad.returncode, out, len(err.splitlines())) == (2, "", 2)
    assert os.listdir(tmp_path) == []


def test_bad_input_is_told_before_torch_is_loaded():
    code = (
        "import sys; from fedweave import cli; sys.argv = ['fedweave', 'run', 'fedavg', '--rounds', 'x']\n"
        "try: cli.main()\nexcept SystemExit as e: sys.exit(3 if 'torch' in sys.modules else e.code)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 2


@pytest.mark.parametrize("words", [["--help"], ["list"], ["list", "claims"]])
def test_what_trains_nothing_loads_no_torch(words):
    code = (
        f"import sys; from fedweave import cli; sys.argv = ['fedweave', *{words}]\n"
        "try: cli.main()\nexcept SystemExit as e: sys.exit(3 if 'torch' in sys.modules else e.code)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_shows_an_example_that_works(command, fedweave, monkeypatch):
    code, out, err = fedweave(*command.split(), "--help")
    assert (code, err) == (0, "")
    example = re.search(r"Example: fedweave (.*)", out)
    assert example, out
    assert example[1].startswith(command)

    def good():
        raise BadInput("the input is good")

    for module in (cli, sweep_command):
        monkeypatch.setattr(module, "training", good)
    code, _, err = fedweave(*shlex.split(example[1]))
    assert (code, err) in ((0, ""), (2, "error: the input is good\n"))


def test_help_tells_every_option_and_a_default_that_changes_nothing_when_it_is_typed(fedweave):
    _, out, _ = fedweave("run", "--help")
    plain, in_words = (
        experiments_of(["fedavg"], {}),
        {
            "clients",
            "model",
            "task",
            "epochs",
            "pacing",
            "deadline",
            "answers",
            "quarantine",
            "client_eval",
            "patience",
            "stop_after",
            "start",
            "adversary",
            "upload",
            "validation",
        },
    )
    for name in OPTIONS:
        told = re.search(rf"^\W*--{name.replace('_', '-')} .*?(\[[^]]*\])?\s*│?$", out, re.MULTILINE)
        assert told, name
        if name not in in_words and told[1]:
            (experiment,), ours = experiments_of(["fedavg"], {name: told[1][1:-1]})
            assert (experiment, ours.per_round, ours.seeds) == (plain[0][0], 5, 1), name
    assert "--longest" not in out


def test_an_old_option_is_one_line_on_stderr_and_an_unknown_one_is_near_those_of_its_command(fedweave):
    code, out, err = fedweave("run", "fedmd", *TINY, "--fewest", 1, "--out", "r", "--json")
    warnings = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert (code, json.loads(out)["method"], len(warnings)) == (0, "fedavg_md", 2)
    assert "--fewest is now called --min-answers" in warnings[0]
    for typed, near in (("plan c.csv --epsilo 1", "--epsilon"), ("flower demo --nods 3", "--nodes")):
        code, _, err = fedweave(*typed.split())
        assert (code, err) == (2, f"error: There is no option '{typed.split()[2]}'. Did you mean {near!r}?\n")


@pytest.mark.parametrize("what", ["methods", "data", "models", "partitions", "systems"])
def test_list_names_what_options_take(what, fedweave):
    code, out, _ = fedweave("list", what, "--json")
    names = json.loads(out)
    assert (code, list(names)) == (0, ["methods", "groups"] if what == "methods" else [what])
    assert all(names[what].values())
    _, text, _ = fedweave("list", what)
    assert all(name in text for name in names[what])
    _, everything, _ = fedweave("list", "--json")
    assert json.loads(everything)[what] == names[what]
    if what == "methods":
        assert names[what] == method_names()
        assert json.loads(everything)["groups"] == names["groups"]
        lines = [line.split() for line in text.splitlines() if line.strip()]
        shown = [words[0] for words in lines if words[0] in names[what] or words[0] in names["groups"]]
        assert shown == [name for group, some in names["groups"].items() for name in (group, *some)]


def test_run_prints_one_object_with_what_is_promised(fedweave, tmp_path):
    code, out, err = fedweave("run", "fedprox", *TINY, "--target", "0.1", "--seed", "4", "--out", "a/b", "--json")
    found = json.loads(out)
    assert (code, out.count("\n")) == (0, 1)
    assert found.keys() >= PROMISED
    assert "round 3/3" in err
    assert (found["method"], found["rounds"], found["run"], found["rounds_to_target"]) == ("fedprox", 3, "a/b", 1)
    experiment = fw.Experiment(
        methods.fedprox(3), "digits", fw.partition.Dirichlet(6, 0.5), system=fw.system.Dynamic(), rounds=3, seed=4
    )
    assert found["digest"] == running.run(experiment).summary["digest"]
    manifest = json.loads((tmp_path / "a/b/manifest.json").read_text())
    assert manifest["command"].startswith("fedweave run fedprox --data digits")


def test_quiet_shows_results_alone_and_verbose_also_what_a_run_works_with(fedweave, tmp_path):
    (tmp_path / "noisy.py").write_text(
        "import itertools, warnings, fedweave as fw\n"
        "numbers = itertools.count(1)\n"
        "def method(per_round):\n"
        "    warnings.warn('look out', ImportWarning)\n"  # which Python does not show unless it is asked to
        "    warnings.warn(f'look up {next(numbers)}')\n"
        "    return fw.methods.fedavg(per_round)\n"
    )
    _, normal, shown = fedweave("run", "noisy:method", *TINY, "--out", "n")
    code, out, err = fedweave("run", "noisy:method", *TINY, "--out", "q", "--quiet")
    assert (code, err) == (0, "warning: look up 2\n")
    assert out.replace("run: q", "run: n").splitlines()[-1] == normal.splitlines()[-1]
    assert "round 3/3" in shown
    code, _, err = fedweave("run", "noisy:method", *TINY, "--out", "v", "-v")
    warned = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert code == 0
    assert [re.sub(r".*/noisy", "noisy", line) for line in warned] == [
        "noisy.py:4: ImportWarning: look out",
        "noisy.py:5: UserWarning: look up 3",
    ]
    for told in ("software: python", "processor: ", "trainer: ", "data: digits, 6 clients with", "650 parameters"):
        assert told in err
    assert "round 3/3" in err
    code, _, err = fedweave("resume", "v", "-q", "--json")
    assert (code, err) == (0, "")


def test_verbose_shows_where_bad_input_was_noticed(fedweave):
    code, _, err = fedweave("run", "fedavg", "--rounds", "x", "--verbose")
    assert code == 2
    assert err.startswith("Traceback")
    assert "\nerror: --rounds must be" in err
    code, _, err = fedweave("run", "fedavg", *TINY, "-q", "-v")
    assert (code, "--quiet and --verbose exclude each other" in err) == (2, True)
    code, _, err = fedweave("reproduce", "fedacs/fig7", "-q", "-v")
    assert (code, "--quiet and --verbose exclude each other" in err) == (2, True)


def test_quiet_still_warns_of_refused_updates(capsys):
    run = Running(fw.Experiment("fedavg", seed=3), {}, None, 0)
    run.failures.append(("refused", Failure(1, "3 of 9 values are not finite, first in w[0]")))
    (heard,) = (given for given in beside_progress(Talk(quiet=True)) if isinstance(given, Callback))
    for number, refused in ((4, 2), (5, 0), (6, 1), (7, 1)):
        heard.round(run, {"round": number, "refused": refused}, None)
    heard.end(run, None, None)
    why = "3 of 9 values are not finite, first in w[0] (a lower learning rate may help)"
    first, last = capsys.readouterr().err.splitlines()
    assert first == f"warning: fedavg-seed3, round 4: refused 2 updates: {why}"
    assert last == "warning: fedavg-seed3: updates were refused in 3 rounds"


def test_runs_of_one_second_do_not_collide(fedweave, tmp_path, monkeypatch):
    monkeypatch.setattr(common.time, "strftime", lambda _: "20260101-120000")
    for _ in range(2):
        assert fedweave("run", "fedavg", *TINY)[0] == 0
    assert sorted(os.listdir(tmp_path / "runs")) == ["fedavg-20260101-120000", "fedavg-20260101-120000-2"]


FILE = """
data = "digits"
clients = 6
per-round = 3
rounds = 9
system = "dynamic"
batch-size = 10

[method.sampler]
type = "Uniform"
per_round = 2
[method.solver]
type = "Prox"
mu = 0.5
"""


def test_an_experiment_file_runs_and_typed_options_win(fedweave, tmp_path):
    (tmp_path / "own.toml").write_text(FILE)
    typed = ("--rounds", 2, "--set", "method.solver.mu=0.25", "--workers", 1)
    code, out, _ = fedweave("run", "own.toml", *typed, "--out", "r", "--json")
    assert (code, json.loads(out)["method"], json.loads(out)["rounds"]) == (0, "own", 2)
    plain = json.loads((tmp_path / "r/experiment.json").read_text())
    assert (plain["rounds"], plain["batch_size"], plain["partition"]["clients"]) == (2, 10, 6)
    assert plain["method"]["solver"]["mu"] == 0.25
    assert plain["method"]["sampler"] == {"type": "Uniform", "per_round": 2}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder for what several tests look at."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def compared(fedweave, kept):
    """Return the program in a folder with a comparison ``c`` of two methods and two seeds, and what it printed."""
    if not (kept / "printed").exists():
        code, out, _ = fedweave("compare", "fedavg", "fedyogi", *TINY, "--seeds", 2, "--out", "c", "--json")
        assert code == 0
        shutil.move("c", kept)
        (kept / "printed").write_text(out)
    shutil.copytree(kept / "c", "c")
    return fedweave, json.loads((kept / "printed").read_text())


def test_the_first_sentences_of_the_page_are_printed_too(compared):
    fedweave, _ = compared
    code, out, _ = fedweave("report", "c")
    assert code == 0
    told, where = out.splitlines()[-2:]
    (lede,) = re.findall('<p class="lede">(.*?)</p>', Path(where.removeprefix("report: ")).read_text(encoding="utf-8"))
    assert told.startswith(unescape(lede))


def test_compare_prints_runs_and_summary_and_leaves_a_page(compared, tmp_path):
    _, found = compared
    assert [(r["method"], r["seed"]) for r in found["runs"]] == [
        ("fedavg", 0), ("fedyogi", 0), ("fedavg", 1), ("fedyogi", 1),
    ]  # fmt: skip
    assert all(run.keys() >= PROMISED for run in found["runs"])
    for row in found["summary"]:
        mine = [r["accuracy"] for r in found["runs"] if r["method"] == row["method"]]
        assert row["accuracy"] == pytest.approx(sum(mine) / 2)
        assert row["accuracy_std"] == pytest.approx(abs(mine[0] - mine[1]) / 2**0.5)
    page = (tmp_path / "c/report.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "fedyogi" in page
    assert not re.search(r"(src|href)=.https?:", page), "the page needs no network"


def test_report_and_export_read_what_was_run(compared, tmp_path):
    fedweave, found = compared
    code, out, _ = fedweave("report", "c/fedavg-seed0", "c/fedyogi-seed1", "--html", "sub/page.html", "--json")
    assert code == 0
    assert json.loads(out)["runs"] == [found["runs"][0], found["runs"][3]]
    assert "fedyogi" in (tmp_path / "sub/page.html").read_text()
    code, out, _ = fedweave("report", "c")
    assert (code, "report: c/report.html" in out, "fedavg" in out) == (0, True, True)
    for option in ("--html", "--curves"):
        place = tmp_path if option == "--html" else tmp_path / "c" / "compare.json" / "curves.png"
        code, _, err = fedweave("report", "c", option, place)
        assert (code, "cannot be written" in err) == (2, True)
    code, out, _ = fedweave("report", "c", "--curves", "sub/curves.png")
    assert (code, "curves: sub/curves.png\n" in out) == (0, True)
    assert (tmp_path / "sub/curves.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = fedweave("report", "c", "--curves", "curves.jpg")
    assert (code, ".png, .svg, .pdf" in err) == (2, True)

    code, out, _ = fedweave("export", "c", "--to", "csv", "--json")
    files = json.loads(out)["files"]
    assert (code, len(files)) == (0, 9)
    with open(files[-1]) as file:
        means = list(csv.DictReader(file))
    assert (files[-1], [row["method"] for row in means]) == ("c/summary.csv", ["fedavg", "fedyogi"])
    assert float(means[1]["accuracy"]) == found["summary"][1]["accuracy"]
    assert float(means[1]["paired_low"]) == found["summary"][1]["paired"]["low"]
    assert (means[0]["paired_low"], "paired" in means[0], "by_seed" in means[0]) == ("", False, False)
    with open(files[0]) as file:
        rows = list(csv.DictReader(file))
    assert [int(r["round"]) for r in rows] == [1, 2, 3]
    assert float(rows[-1]["accuracy"]) == found["runs"][0]["accuracy"]
    code, out, _ = fedweave("export", "c/fedyogi-seed0", "--to", "parquet")
    assert code == 0
    import pyarrow.parquet as pq

    table = pq.read_table(out.splitlines()[0]).to_pydict()
    assert table["accuracy"][-1] == found["runs"][1]["accuracy"]


def test_a_folder_in_use_says_how_to_continue(compared):
    fedweave, _ = compared
    for typed in (("compare", "fedavg", *TINY, "--out", "c"), ("run", "fedavg", *TINY, "--out", "c/fedavg-seed0")):
        code, out, err = fedweave(*typed)
        assert (code, out) == (2, "")
        assert f"`fedweave resume {typed[-1]}`" in err


def test_an_interrupted_comparison_names_itself_and_is_continued(compared, monkeypatch):
    fedweave, found = compared

    def stop(self, run, row, state):
        if (run.name, run.experiment.seed, row["round"]) == ("fedyogi", 0, 2):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Show, "round", stop)
        code, out, err = fedweave("compare", "fedavg", "fedyogi", *TINY, "--seeds", 2, "--out", "d")
    assert (code, out) == (130, "")
    assert "Continue with: fedweave resume d\n" in err
    code, out, _ = fedweave("resume", "d", "--json")
    assert code == 0
    assert [r["digest"] for r in json.loads(out)["runs"]] == [r["digest"] for r in found["runs"]]


def test_runs_are_tracked_from_the_command_line(fedweave, tmp_path):
    code, _, err = fedweave("run", "fedavg", *TINY, "--out", "r", "--track", "tensorboard:", "--track", "tensorbord:b")
    assert code == 2
    assert len(err.splitlines()) == 2
    assert "Did you mean 'tensorboard'?" in err
    assert not list(tmp_path.iterdir())
    assert fedweave("compare", "fedavg", "fedprox", *TINY, "--out", "c", "--track", "tensorboard:b")[0] == 0
    assert {p.name for p in (tmp_path / "b").iterdir()} == {"fedavg-seed0", "fedprox-seed0"}
    before = {p: p.read_bytes() for p in (tmp_path / "b").rglob("events*")}
    assert fedweave("resume", "c", "--track", "tensorboard:b")[0] == 0
    assert {p: p.read_bytes() for p in (tmp_path / "b").rglob("events*")} == before, "nothing was left to do"


OVER = ["--over", "fedavg:lr=0.01,0.1", "--over", "fedprox:method.solver.mu=0,0.1"]


def test_a_sweep_prints_one_object_is_continued_reported_and_exported(fedweave, tmp_path, monkeypatch):
    words = ["sweep", "fedavg", "fedprox", *TINY, *OVER, "--seeds", 2, "--out", "s"]

    def stop(self, run, row, state):
        if run.folder.name == "fedprox-mu0-seed1":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Show, "round", stop)
        code, out, err = fedweave(*words)
    assert (code, out) == (130, "")
    assert "Continue with: fedweave resume s\n" in err
    code, out, err = fedweave("resume", "s", "--json")
    found = json.loads(out)
    assert (code, "] fedprox-mu0.1-seed1  round 3/3" in err) == (0, True)
    assert [(r["method"], r["seed"], r["point"]["lr"]) for r in found["runs"][:2]] == [
        ("fedavg", 0, 0.01),
        ("fedavg", 0, 0.1),
    ]
    assert all(run.keys() >= PROMISED for run in found["runs"])
    assert (len(found["runs"]), len(found["summary"]), len(found["tested"])) == (8, 4, 4)
    for row in found["summary"]:
        mine = [r["value"] for r in found["runs"] if (r["method"], r["point"]) == (row["method"], row["point"])]
        assert row["mean"] == pytest.approx(sum(mine) / 2)
        assert row["low"] < row["mean"] < row["high"] or mine[0] == mine[1]
    best = {m: max((r for r in found["summary"] if r["method"] == m), key=lambda r: r["mean"]) for m in found["best"]}
    assert {m: row["point"] for m, row in found["best"].items()} == {m: row["point"] for m, row in best.items()}
    assert found["best"]["fedavg"]["test"]["mean"] == pytest.approx(
        sum(r["value"] for r in found["tested"] if r["method"] == "fedavg") / 2
    )
    page = (tmp_path / "s/report.html").read_text()
    code, out, _ = fedweave("report", "s", "--json", "--html", "page.html")
    assert (code, {**json.loads(out), "report": ""}) == (0, {**found, "report": ""})
    assert (tmp_path / "page.html").read_text() == page
    code, out, err = fedweave(*words)  # everything is there
    edges = [line for line in err.splitlines() if "that was tried: try some beyond it." in line]
    assert edges, "two values have no inside"
    assert all(line.removeprefix("warning: ") in html.unescape(page) for line in edges)
    assert (code, "validation accuracy, mean over 2 seeds" in out, "best points on the test set" in out) == (
        0,
        True,
        True,
    )
    code, out, _ = fedweave("export", "s")
    assert (code, len(out.splitlines()), out.splitlines()[-1]) == (0, 2 * 12 + 1, "s/summary.csv")


BAD_SWEEPS = {
    "--over lr": ["--over takes PATH=VALUES", "'lr'"],
    "--over =1": ["--over takes PATH=VALUES", "'=1'"],
    "": ["sweep needs --over"],
    "--over lrr=1 --over method.solver.mu=1": [
        "--over lrr: there is no field",
        "--over method.solver.mu: fedavg has no",
    ],
    "--over lr=1 --over lr=2 --epochs x": ["--over lr is given twice", "--epochs"],
    "--over lr=0.1,,x": ["'lr' parameter", "Got '' instead", "Got 'x' instead"],
    "--over lr=1 --validation 1": ["--validation", "less than 1"],
    "--over lrr=1 --over lr=-1 --epochs x --track tensorbord:x --batch-size 0": [
        "--over lrr: there is no field",
        "fedavg-lr-1",
        "--epochs",
        "'tensorbord'",
        "--batch-size",
    ],
    "--over lrr=1 --evaluate train --epoch 3": ["--over lrr", "--evaluate must include test", "no option '--epoch'"],
    "--over seed=1 --set lrr=1 --epochs x": ["--set", "'lrr'", "--epochs", "--over seed"],
    "--over fedprx:lr=1 --at-once 2.5": ["--over fedprx:lr: 'fedprx' is no method", "--at-once"],
    "--over method.sampler.per_round=3,99": ["fedavg-per_round99", "asks for more clients than there are: 6"],
}


@pytest.mark.parametrize("typed", BAD_SWEEPS)
def test_what_is_wrong_with_a_sweep_is_told_at_once(typed, fedweave, tmp_path):
    code, out, err = fedweave("sweep", "fedavg", "fedprox", *TINY, *shlex.split(typed))
    assert (code, out) == (2, "")
    assert all(word in err for word in BAD_SWEEPS[typed]), err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "typed",
    [
        "fedavg --over partition.per_client=1,2 --partition shrds:2",
        "fedavg --set partition.per_client=1 --over lr=1 --partition shrds:2",
        "fedavg fedprx --over fedprox:method.solver.mu=0,1",
        "fedavg --over lr=1 --target high --stop-at-target true",
    ],
)
def test_what_follows_from_another_mistake_is_not_told(typed, fedweave):
    code, _, err = fedweave("sweep", *shlex.split(typed))
    assert (code, len(err.splitlines())) == (2, 1), err


def test_values_of_a_sweep_are_typed_with_commas_or_as_json():
    read = sweep_command.read_over
    assert read(["lr=0.1, 1"]) == {"lr": [0.1, 1]}
    assert read(["fedavg,fedprox:partition=iid,dirichlet:0.1"]) == {
        "fedavg,fedprox:partition": ["iid", "dirichlet:0.1"]
    }
    assert read(['system=["devices,jitter:0.2", "static"]']) == {"system": ["devices,jitter:0.2", "static"]}
    assert read(["submodels=[[1, 0.5], []]", "upload=null,topk:0.1", "calibrate=true"]) == {
        "submodels": [[1, 0.5], []],
        "upload": [None, "topk:0.1"],
        "calibrate": [True],
    }


def test_a_failed_run_has_code_1(fedweave, monkeypatch):
    def fail(*_):
        raise RuntimeError("a training process died")

    monkeypatch.setattr(running, "run_round", fail)
    code, out, err = fedweave("run", "fedavg", *TINY, "--out", "r")
    assert (code, out) == (1, "")
    assert err.endswith("The run failed: a training process died\n")
    monkeypatch.undo()


def test_a_stopped_program_says_how_to_continue(tmp_path):
    """That it does continue, to the same bits, and from any moment, is shown in tests/faults/test_signals.py."""
    typed = ("fedavgm", *TINY[:6], "--system", "dynamic", "--workers", "1", "--rounds", "9999")
    stopped = program("run", *typed, "--out", "r", cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "r/run.sqlite-wal").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.15)  # some rounds later
    stopped.send_signal(signal.SIGTERM)
    out, err = stopped.communicate(timeout=30)
    assert (stopped.returncode, out) == (143, ""), err
    assert "the state is saved. Continue with: fedweave resume r\n" in err
    assert running.load_result(tmp_path / "r").summary["rounds"] < 9999


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("--audit --stop-at-target --target 0", (True, True, 1)),
        ("--stop-at-target true --audit false --target 0", (False, True, 1)),
        ("--target 0 --stop-at-target=false --audit", (True, False, 3)),
        ("--stop-at-target no audited.toml --target 0", (True, False, 3)),
        ("audited.toml --audit off", (False, False, 3)),
    ],
)
def test_what_is_on_or_off_may_stand_alone(typed, found, fedweave, tmp_path):
    (tmp_path / "audited.toml").write_text("audit = true")
    words = shlex.split(typed) if "toml" in typed else ["fedavg", *shlex.split(typed)]
    code, out, err = fedweave("run", *TINY, *words, "--out", "r", "--json")
    assert code == 0, err
    said = running.load_result(tmp_path / "r").experiment
    assert (said["audit"], said["stop_at_target"], json.loads(out)["rounds"]) == found
    assert (tmp_path / "r" / "audit.jsonl").exists() == found[0]


def test_verify_separates_intact_runs_from_broken_ones(fedweave, tmp_path):
    assert fedweave("compare", "fedavg", "fedacs", *TINY, "--audit", "true", "--out", "c")[0] == 0
    assert fedweave("run", "fedavg", *TINY, "--out", "r")[0] == 0
    code, out, err = fedweave("verify", "c", "r")
    assert (code, err) == (0, "")
    assert out.count("intact: 3 rounds") == 3
    assert out.count("audit log ends with") == 2
    assert out.count("no audit log") == 1
    assert f"model {running.load_result(tmp_path / 'r').summary['digest']};" in out
    assert out.endswith("not compared: the two folders do not have the same runs\n")
    assert fedweave("run", "fedavg", *TINY, "--out", "again")[0] == 0
    assert fedweave("verify", "r", "again")[1].endswith("equal: the models of both are the same, bit for bit\n")
    assert fedweave("run", "fedavgm", *TINY, "--out", "r1")[0] == 0
    assert fedweave("verify", "r", "r1")[1].endswith("not equal: 1 of 1 models differ\n")
    log = next((tmp_path / "c").glob("*/audit.jsonl"))
    log.write_text(log.read_text().replace('"verdict": "accepted"', '"verdict": "refused"', 1))
    code, out, err = fedweave("verify", "c", "--json")
    (broken,) = [findings for run, findings in json.loads(out).items() if str(log.parent).endswith(run)]
    assert code == 1
    assert re.search(r"audit.jsonl:\d+ does not follow from the lines before it", err)
    assert len(broken["problems"]) == 1
    assert fedweave("verify")[0] == 2
    assert fedweave("verify", "nowhere")[0] == 2


@pytest.mark.parametrize("name", ["manifest.json", "experiment.json", "run.sqlite"])
def test_verify_names_the_file_that_is_missing(name, fedweave, tmp_path):
    assert fedweave("run", "fedavg", *TINY, "--out", "r")[0] == 0
    (tmp_path / "r" / name).unlink()
    code, _, err = fedweave("verify", "r")
    assert (code, err.count(name), err.count("json"), "Expecting" in err) == (
        1 if name == "manifest.json" else 2, 1, int("json" in name), False,
    )  # fmt: skip


def test_a_folder_that_is_missing_is_told_with_the_rest(fedweave):
    code, _, err = fedweave("resume", "nowhere", "--rounds", "4.6")
    assert (code, "There is no folder 'nowhere'" in err, "--rounds must be a whole number" in err) == (2, True, True)
    assert len(err.splitlines()) == 2


def test_without_states_the_rows_are_reported_and_resume_says_what_is_left(fedweave, tmp_path):
    assert fedweave("run", "fedavg", *TINY, "--evaluate-every", "2", "--out", "r")[0] == 0
    newest, *others = sorted((tmp_path / "r").glob("state-*"), reverse=True)
    newest.unlink()
    code, _, err = fedweave("resume", "r")
    assert (code, err.count("missing or damaged; trying")) == (0, 1)
    assert "fedavg-seed0: continuing after round 2 of 3\n" in err
    for state in (newest, *others):
        state.unlink()
    code, _, err = fedweave("resume", "r")
    assert (code, "`fedweave report` shows them" in err) == (2, True)
    code, out, err = fedweave("report", "r")
    assert (code, "has lost its model; only its rows are read" in err, "fedavg" in out) == (0, True, True)
    code, _, err = fedweave("export", "r", "--to", "pt")
    assert (code, "This result has no model" in err) == (2, True)


def test_resume_says_that_the_processor_is_another_one(fedweave, tmp_path):
    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(fw.Interrupted):
        fw.run(fw.Experiment("fedavg", data="digits", rounds=2, workers=1), tmp_path / "run", stop)
    file = tmp_path / "run" / "manifest.json"
    began = json.loads(file.read_text())
    vectors, began["processor"]["vectors"] = began["processor"]["vectors"], "AVX1024"
    file.write_text(json.dumps(began))
    code, _, err = fedweave("resume", "run", "--json")
    assert code == 0
    (warning,) = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert warning.startswith("warning: Resuming on another kind of processor or with another trainer")
    assert warning.endswith(f'processor.vectors ("AVX1024" then, "{vectors}" now).')


LONG = "x" * 4000


@pytest.mark.parametrize(
    "words",
    [
        ["run", "fedavg", "--data", "quadratics", "--partition", "iid", "--out", "."],
        ["run", "fedavg", "--data", "quadratics", "--partition", "iid", "--out", "a/.."],
        ["run", "fedavg", "--data", "quadratics", "--partition", "iid", "--out", LONG],
        ["run", "fedavg", "--data", "quadratics", "--partition", "iid", "--out", "x" * 255],
        ["compare", "fedavg", "--data", "quadratics", "--partition", "iid", "--out", LONG],
        ["run", "fedavg", "--data", LONG],
        ["run", "fedavg", "--data", "~nobody-of-this-name/x"],
        ["run", "fedavg", "--data", "quadratics", "--system", f"{LONG}.csv"],
        ["resume", LONG],
        ["report", LONG],
        ["export", LONG],
        ["verify", LONG],
    ],
    ids=lambda words: " ".join(words)[:90],
)
def test_a_path_that_cannot_be_used_is_one_short_sentence(words, fedweave, tmp_path):
    code, out, err = fedweave(*words)
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert len(err) < 1000
    assert not list(tmp_path.iterdir())


def test_a_page_that_cannot_be_written_is_one_sentence(compared, tmp_path):
    fedweave, *_ = compared
    code, _, err = fedweave("report", "c", "--html", LONG)
    assert (code, err.count("\n")) == (2, 1), err


def test_the_program_ends_with_its_code_and_all_of_its_output(tmp_path):
    """It ends without taking itself apart, which must lose neither output nor errors."""
    program = [sys.executable, "-m", "fedweave"]
    listed = subprocess.run([*program, "list", "--json"], capture_output=True, text=True, check=True)
    assert "methods" in json.loads(listed.stdout)
    wrong = subprocess.run([*program, "run", "fedavgg"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: There is no method 'fedavgg'. Did you mean 'fedavg'?")
    words = ["run", "fedavg", "--data", "digits", "--rounds", "1", "--workers", "2", "--json", "--out", "r"]
    ran = subprocess.run([*program, *words], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(ran.stdout)["rounds"] == 1
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            assert subprocess.run([*program, "list"], stdout=full, stderr=subprocess.DEVNULL, check=False).returncode


def test_names_of_the_package_are_found_when_they_are_used():
    """Importing it is quick; what its names stand for is imported with their first use, and torch by what trains."""
    code = (
        "import sys, fedweave as fw; assert 'numpy' not in sys.modules and 'torch' not in sys.modules\n"
        "for name in dir(fw): assert getattr(fw, name) is not None\n"
        "assert fw.partition is sys.modules['fedweave.data.partition'] and not hasattr(fw, 'nothing')\n"
        "assert fw.run is sys.modules['fedweave.runs.loop'].run and 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_claims_are_chosen_by_paper_figure_and_whether_they_were_run(fedweave):
    code, out, _ = fedweave("list", "claims", "--json")
    every = json.loads(out)
    assert code == 0
    for words, wanted in (
        (["feddd"], lambda c: c["paper"] == "feddd"),
        (["feddd/fig7"], lambda c: c["item"].startswith("feddd/fig7/")),
        (["--run"], lambda c: c["verdict"] != "not run"),
        (["feddd", "--run"], lambda c: c["paper"] == "feddd" and c["verdict"] != "not run"),
    ):
        chosen = json.loads(fedweave("list", "claims", *words, "--json")[1])
        assert chosen == [entry for entry in every if wanted(entry)]
        assert 0 < len(chosen) < len(every)
    code, out, _ = fedweave("list", "claims", "feddd", "--run")
    theirs = [c for c in every if c["paper"] == "feddd" and not c["beyond"]]
    assert f"{len(theirs)} claims of the papers, {sum(c['verdict'] != 'not run' for c in theirs)} of them run" in out
    code, _, err = fedweave("list", "methods", "feddd")
    assert (code, err) == (2, "error: ITEM and --run choose among the claims: fedweave list claims feddd --run\n")


def test_too_few_clients_name_the_option(fedweave):
    code, _, err = fedweave("run", "fedavg", "--data", "digits", "--clients", 4, "--rounds", 1)
    assert code == 2
    assert "asks for more clients than there are: 4. Lower per_round (--per-round)" in err


@pytest.mark.parametrize(("words", "what"), [(["reproduce"], "item"), (["list", "claims"], "claim about")])
def test_a_misspelt_item_gets_a_suggestion_and_not_all_names(fedweave, words, what):
    code, _, err = fedweave(*words, "fedd")
    expected = f"There is no {what} 'fedd'. Did you mean 'feddd'? `fedweave list papers` shows all items."
    assert (code, err) == (2, f"error: {expected}\n")
