"""What is built is whole, and works where only what it declares is installed: the core, and each extra.

The environments link what they need from this one; with FEDWEAVE_FAULTS=1 (`make faults`) pip installs them.
"""

import os
import re
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import pytest

import fedweave
from clean import ROOT, built, called, done, linked, metadata, pip_installed
from fedweave.local.compiled import kernels as kernels_module
from smaller import smaller

PIP = bool(os.environ.get("FEDWEAVE_FAULTS"))
SMALL = "--clients 4 --per-round 2 --rounds 2 --workers 1 --out run"
QUADRATICS = """
import numpy as np
from fedweave import methods
from fedweave.core.records import Population
from fedweave.engine.simulator import Simulator
from fedweave.local.quadratic import Quadratics, QuadraticTrainer
from fedweave.round import first_state, run_round
one, problem, method = np.ones(4), Quadratics.random(4, 3, seed=1), methods.fedavg(4)
clients = Population(
    weight=one / 4, samples=one, steps=one.astype(int), batch_size=one, loss_rate=0 * one, latency=one,
    available=one > 0,
)
engine = Simulator(QuadraticTrainer(problem, method.solver, 0, clients.weight))
state = first_state(method, np.zeros(3), clients, 3)
for _ in range(60):
    state, _ = run_round(method, state, clients, engine, 0.5, 0)
assert np.allclose(state.x, problem.optimum.mean(0))
"""
FLEET = """
import fedweave as fw
from fedweave import flower
app = flower.client("mlp", flower.dealt("digits", "iid"))
e = fw.Experiment("fedavg", data="digits", partition=fw.partition.parse("iid", 6), model="mlp", rounds=1, steps=2)
assert flower.run(e, flower.LocalGrid(app, 6)).rounds["received"].tolist() == [5]
"""
(README,) = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
USES = {  # by extras: commands of fedweave, and programs in Python
    "": [QUADRATICS, f"plan {ROOT / 'examples/clients.csv'} --epsilon 0.1"],
    "torch,data": [f"run fedavg --data digits {SMALL}", "export run --to parquet"],
    "fast,data": [smaller(README)],
    "papers": ["reproduce latency/fig2"],
}
USES |= (
    {  # digits with each extra
        "flower,torch,data": [FLEET, "flower demo --nodes 2 --rounds 1"],
        "ray,torch,data": [f"run fedavg --data digits --pool ray {SMALL}"],
        "private,torch,data": [f"run fedacs_private --data digits {SMALL}"],
        "track,torch,data": [f"run fedavg --data digits --track tensorboard:logs {SMALL}"],
    }
    if PIP
    else {
        "flower": ["from fedweave import flower, methods\nflower.Strategy(methods.fedavg(2))"],
        "ray,torch": ["import ray\nfrom fedweave.engine.pool.ray import RayActors\nRayActors(2)"],
        "track,torch,data": [f"run fedavg --data digits --track tensorboard:logs {SMALL}"],
        "private": ["from fedweave import privacy\nassert 6 < privacy.epsilon_participation_known(1.0, 2.0, 1e-5) < 7"],
    }
)
MISSING = {  # by extras: what is refused for want of another one
    "": {
        README: "torch",
        "run fedavg --data digits": "torch",
        "run fedavg --data digits --track tensorboard:logs": "track",
        "reproduce latency/fig2": "papers",
        "flower demo": "flower,torch,data",
        "import fedweave.flower": "flower",
        "import fedweave\nfedweave.run": "torch",
        "from fedweave import data\ndata.load('digits')": "data",
        "from fedweave import privacy\nprivacy.epsilon(1.0, 3, 2, 0.5, 1e-5)": "private",
    },
    "data": {"reproduce fedacs/links/static": "papers"},  # scikit-learn brings joblib, but there is no torch
    "torch": {"run fedavg --data digits": "data", README: "data"},
    "flower": {"from fedweave.flower import server": "flower,torch"},
    "flower,torch": {"flower new app": "flower,torch,data"},
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The sdist and the wheel."""
    return built(tmp_path_factory.mktemp("dist"))


def command(python: Path, use: str) -> list[str | Path]:
    """Return the command line of a program in Python, which has imports, or of a command of fedweave."""
    return [python, "-c", use] if "import " in use else [python, python.parent / "fedweave", *use.split()]


@pytest.mark.parametrize("extras", USES)
def test_what_is_declared_is_enough(extras, packages, tmp_path):
    with TemporaryDirectory() as venv:  # it can be large
        python = (pip_installed if PIP else linked)(packages[1], extras, Path(venv))
        if PIP or not extras:
            assert done(*command(python, "--version")).strip() == fedweave.__version__
            assert "fedavg" in done(*command(python, "list"))
        kernels = {} if PIP else {"NUMBA_CACHE_DIR": str(Path(kernels_module.__file__).parent / "__pycache__")}
        for use in USES[extras]:
            done(*command(python, use), folder=tmp_path, **kernels)  # compiled here, unless that is to be tried too


@pytest.mark.parametrize("extras", MISSING)
def test_what_is_missing_is_named_before_any_work(extras, packages, tmp_path):
    python, folder = linked(packages[1], extras, tmp_path / "venv"), tmp_path / "here"
    folder.mkdir()
    for use, extra in MISSING[extras].items():
        result = called(*command(python, use), folder=folder)
        assert result.returncode == (1 if "import " in use else 2), use
        assert f"pip install 'fedweave[{extra}]'" in result.stderr.splitlines()[-1]
        assert not list(folder.iterdir())


def test_the_wheel_holds_the_package_and_nothing_else(packages):
    tree = {
        f"fedweave/{p.relative_to(ROOT / 'src/fedweave')}" for p in (ROOT / "src/fedweave").rglob("*") if p.is_file()
    }
    with ZipFile(packages[1]) as file:
        names = set(file.namelist())
    results = ROOT / "results"
    tree |= {f"fedweave/papers/recorded/{p.relative_to(results).as_posix()}" for p in results.rglob("*") if p.is_file()}
    assert {n for n in names if ".dist-info/" not in n} == {n for n in tree if "__pycache__" not in n}
    assert "fedweave/py.typed" in names
    assert f"fedweave-{fedweave.__version__}.dist-info/licenses/LICENSE" in names


def test_the_sdist_holds_the_sources_and_no_data(packages):
    with tarfile.open(packages[0]) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    tops = """src tests docs examples benchmarks results tools PKG-INFO pyproject.toml constraints.txt zensical.toml
        Makefile README.md LICENSE CHANGELOG.md CITATION.cff CONTRIBUTING.md SECURITY.md .gitignore"""
    assert {n.partition("/")[0] for n in names} == {*tops.split()}
    kinds = "py ipynb typed md html css js png svg csv json toml txt cff run PKG-INFO LICENSE Makefile gitignore"
    assert {n.rpartition(".")[2] for n in names} <= {*kinds.split()}
    assert packages[0].stat().st_size < 2**22, "pictures of the docs and recorded results are the largest part"


def test_the_metadata_says_what_an_index_shows(packages):
    about = metadata(packages[1]).metadata
    assert about["Version"] == fedweave.__version__
    assert about["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in about.get_all("Classifier")
    assert about["Metadata-Version"] == "2.4", "the newest that twine and indexes take"
    assert about["Author"]
    assert about["Keywords"]
    assert about["Description-Content-Type"] == "text/markdown"
    page = about.get_payload()
    assert README in page
    assert not re.findall(r"\]\((?!https?:|#)", page), "a link that an index cannot follow"
