"""FedAWARE's items at smoke scale: they run, they judge rightly, and they say what is missing."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from fedweave import papers
from fedweave.cli.app import app
from fedweave.core.randomness import Stream, rng_for
from fedweave.core.settings import BadInput
from fedweave.data import load
from fedweave.data.partition import label_counts
from fedweave.papers.common.claims import judge_lead
from fedweave.papers.fedaware import claims, items, setup
from fedweave.papers.fedaware.items import ALL, FEW, TABLE1
from fedweave.papers.fedaware.setup import GRIDS, METHODS, SETTINGS, SIZES, FedAwareSetup
from fedweave.runs.results import Result, summarise
from fedweave.runs.session import nominal_population


@pytest.fixture(scope="module")
def mnist5k():
    return load("mnist5k")


@pytest.fixture
def here(monkeypatch, mnist5k):
    """Run the smallest of runs, and read the data once."""
    monkeypatch.setitem(
        setup.SIZES, "smoke", replace(SIZES["smoke"], train=200, clients=10, per_round=2, rounds=2, seeds=1)
    )
    monkeypatch.setattr("fedweave.papers.common.scale.load", lambda name: mnist5k)


def test_figure8_compares_five_methods_in_three_settings(here):
    seen = []
    outcome = papers.reproduce("fedaware/fig8", "smoke", lambda done, total: seen.append((done, total)))
    assert [(r["setting"], r["method"]) for r in outcome.rows] == [(s, m) for s in SETTINGS for m in FEW]
    assert {c.verdict for c in outcome.claims} == {"not run at this scale"}
    assert all(any(c.text.startswith(s) for c in outcome.claims) for s in SETTINGS)
    assert seen == [(i, 15) for i in range(16)]
    assert {r.summary["method"] for r in outcome.runs} == {f"{m}, {s}" for s in SETTINGS for m in FEW}
    json.dumps(outcome.plain())


def test_every_method_of_the_table_runs_and_the_best_of_a_grid_is_kept(here, monkeypatch):
    monkeypatch.setitem(setup.SIZES, "smoke", replace(setup.SIZES["smoke"], tuned=True))
    monkeypatch.setattr(items, "FEW", ("scaffold", "feddyn", "fednova_renorm", "fedprox"))
    outcome = papers.reproduce("fedaware/fig8/hybrid", "smoke", lambda done, total: None)
    assert [r["method"] for r in outcome.rows] == ["scaffold", "feddyn", "fednova_renorm", "fedprox"]
    assert len(outcome.runs) == 4


@pytest.mark.parametrize("item", ["fig2", "fig6", "fig7", "variants"])
def test_the_other_figures_run(item, here):
    outcome = getattr(items, item)("smoke", lambda done, total: None, "mnist")
    assert len(outcome.rows) == len(outcome.runs) == len({r.summary["method"] for r in outcome.runs}) > 2
    assert len({tuple(row) for row in outcome.rows}) == 1, "a table has the same columns in every line"
    assert {c.verdict for c in outcome.claims} == {"not run at this scale"}


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDWEAVE_DATA", str(tmp_path))
    monkeypatch.setenv("FEDWEAVE_OFFLINE", "1")


def test_items_say_which_data_is_missing_and_do_not_crash(no_data):
    for item in [i for i in papers.ITEMS if i.startswith("fedaware/") and "fig8" not in i]:
        outcome = papers.reproduce(item, "smoke")
        assert not outcome.rows
        (claim,) = outcome.claims
        assert claim.verdict == "not run at this scale"
        assert re.search("cifar-10|fashion", claim.evidence, re.I), claim.evidence


def test_the_settings_are_the_papers(here):
    """Statistical: even work, two labels. Hybrid: uneven work, fixed. Hybrid+: work and batches change every round."""
    setup = FedAwareSetup("mnist", "smoke", None)
    for name, make in SETTINGS.items():
        e = setup.experiment(make(10))
        shares = e.partition.split(e.data, rng_for(0, 0, Stream.PARTITION))
        base = nominal_population(e, np.array([part.size for part in shares.train]))
        first, second = (e.system.population(base, r, 0) for r in (1, 2))
        labels = (label_counts(e.data, shares.train) > 0).sum(1)
        if name == "statistical":
            assert labels.max() <= 2
            assert len(set(first.steps)) == 1
        else:
            assert base.samples.min() >= 10
            assert len(set(first.steps)) > 3
        changes = not np.array_equal(first.steps, second.steps) or not np.array_equal(
            first.batch_size, second.batch_size
        )
        assert changes == (name == "hybrid+")
        assert (e.lr, e.epochs) == (0.01, None if name == "hybrid+" else 3)


def test_the_grids_are_those_of_appendix_c1():
    assert sorted(GRIDS["fedyogi"]) == pytest.approx(10.0 ** np.arange(-3, 1.5, 0.5))
    assert set(GRIDS["fedavgm"]) == {0.7, 0.9, 0.97, 0.997}
    assert set(GRIDS["fedprox"]) == {0.01, 0.1, 1, 10}
    assert set(GRIDS["feddyn"]) == {0.1, 0.01, 0.001}
    tuned, plain = FedAwareSetup("mnist", "paper", None), FedAwareSetup("mnist", "laptop", None)
    assert SIZES["paper"].tuned
    for name in ALL:
        arms = tuned.arms(name)
        assert len(arms) == len(GRIDS.get(name, (0,)))
        assert plain.arms(name) == arms[:1]
        if name in GRIDS:  # the default of the named method is the first value
            assert METHODS[name](10) == arms[0]
    assert set(TABLE1) <= set(ALL)


def made(accuracy, **columns):
    n = len(accuracy)
    zero, number = np.zeros(n), np.arange(1, n + 1)
    rounds = dict.fromkeys(("clock", "wall_seconds", "bytes_up", "bytes_down", "refused", "abandoned"), zero)
    rounds |= {"round": number, "accuracy": np.array(accuracy), "loss": zero, **columns}
    return Result({}, {}, rounds, {}, summarise(rounds, None))


def test_rows_and_verdicts_by_hand():
    runs = [made([0.1, 0.5, 0.4, 0.4], step_length=np.array([8.0, 4, 2, 1]), diversity=np.array([2, np.inf, 3, 5.0]))]
    line = claims.table_row(
        "hybrid",
        "fedavg",
        [*runs, made([0.1, 0.7, 0.7, 0.7], step_length=np.ones(4), diversity=np.ones(4))],
        "50.47 ± 0.20",
    )
    assert line["top"] == "60.00 ± 14.14"
    assert line["step length, quarters"] == "4.5 2.5 1.5 1"
    assert line["diversity, quarters"] == "1.5 1 2 3"
    assert line["surrogate"] == "—"
    assert claims.jitter(runs) == pytest.approx((0.4 + 0.1 + 0) / 3)
    better, worse, near = np.array([0.8, 0.82, 0.81]), np.array([0.5, 0.52, 0.51]), np.array([0.79, 0.83, 0.80])
    assert judge_lead("", better, {"a": worse}, "laptop").verdict == "confirmed"
    assert judge_lead("", better, {"a": worse, "b": near}, "laptop").verdict == "not confirmed"
    assert judge_lead("", worse, {"a": better}, "laptop", sign=-1).verdict == "confirmed"
    assert judge_lead("", better, {"a": worse}, "smoke").verdict == "not run at this scale"
    assert claims.judge_correlation("", np.array([1, 2, 3]), np.array([1, 3, 2]), "laptop").verdict == "confirmed"
    assert claims.judge_correlation("", np.array([1, 2, 3]), np.array([3, 2, 1]), "laptop").verdict == "not confirmed"


def test_the_command_draws_the_runs(here, tmp_path, capsys):
    with pytest.raises(SystemExit, match="0"):
        app(["reproduce", "fedaware/fig8/hybrid+", "--html", str(tmp_path / "page.html")])
    shown = capsys.readouterr()
    assert "not run at this scale: hybrid+: FedAWARE has the highest top accuracy" in shown.out
    assert "5/5 runs" in shown.err
    page = (tmp_path / "page.html").read_text()
    assert "Surrogate diversity of the memories" in page
    assert "fedaware_unit" in page


def test_without_data_the_command_says_so_and_draws_nothing(no_data, tmp_path, capsys):
    with pytest.raises(BadInput, match=r"fedaware/table1 has no runs to draw"):
        app(["reproduce", "fedaware/table1", "--html", str(tmp_path / "page.html")])
    assert "cifar-10-batches-bin" in capsys.readouterr().out
    assert not (tmp_path / "page.html").exists()
