"""First apps as Flower's users write them, with only the strategy line changed: they run, and FedAvg is FedAvg."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from fedweave import flower

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICKSTARTS = ["pytorch", "sklearn", "numpy"]
NODES = 10


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks only lose by several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def source(name):
    return (EXAMPLES / f"quickstart_{name}.py").read_text()


def started(code, rounds=None):
    """Run an app on nodes in this process and return its result."""
    app, results = {"__name__": "app"}, []
    exec(code, app)
    app["report"] = results.append
    config = app["RUN_CONFIG"] | ({"num-server-rounds": rounds} if rounds else {})
    app["server_app"](
        flower.LocalGrid(app["client_app"], NODES, run_config=config), Context(1, 0, {}, RecordDict(), config)
    )
    return results[0]


def with_strategy(code, line):
    changed, times = re.subn(r"(?m)^    strategy = .*$", f"    strategy = {line}", code)
    assert times == 1
    return changed


@pytest.mark.parametrize("name", QUICKSTARTS)
def test_the_strategy_line_is_all_that_differs_from_flowers_own(name):
    before = re.search(r"(?m)^    # strategy = (.*)$", source(name)).group(1)
    code = with_strategy(source(name), before)
    body = code[code.index("client_app, server_app = ") : code.index("if __name__")]
    assert not re.search("fedweave|flower[.]|methods[.]", body)
    assert started(code, rounds=1).train_metrics_clientapp.keys() == {1}


@pytest.mark.parametrize("name", QUICKSTARTS)
def test_with_everyone_asked_fedavg_is_flowers_fedavg(name):
    lines = "FedAvg()", f"flower.Strategy(methods.fedavg({NODES}))"
    theirs, ours = (started(with_strategy(source(name), line), rounds=2) for line in lines)
    for key, array in theirs.arrays.items():
        assert ours.arrays[key].dtype == array.dtype
        assert ours.arrays[key].numpy() == pytest.approx(array.numpy(), rel=1e-4, abs=1e-5)
    for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        for metric, value in getattr(theirs, kind)[2].items():
            assert getattr(ours, kind)[2][metric] == pytest.approx(value, rel=1e-4, abs=1e-5)


def test_they_learn():
    for name in ("pytorch", "sklearn"):
        assert started(source(name)).evaluate_metrics_clientapp[5]["accuracy"] > 0.8, name
    (line,) = started(source("numpy")).arrays.to_numpy_ndarrays()
    assert line == pytest.approx(np.array([2, -1]), abs=0.1)


def test_the_guide_shows_the_line_of_the_example():
    shown = (EXAMPLES.parent / "docs" / "flower.md").read_text()
    for line in re.findall(r"(?m)^ *strategy = flower.Strategy.*$|^ *# strategy = .*$", source("pytorch")):
        assert line.strip() in shown
