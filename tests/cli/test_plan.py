"""``fedweave plan``: the plan for a file of clients, every mistake in it by line and column, and the page."""

import json
import re
import shlex
import signal
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave.cli import app as cli
from fedweave.cli.clients_csv import compare_laws, read_clients
from fedweave.core.settings import BadInput
from fedweave.solve import latency_plan
from fedweave.theory import expected_round_seconds, rounds_needed

HEAD = "client,latency_seconds,samples,gradient_bound\n"
GOOD = HEAD + "a,1.5,100,1\nb,0.5,300,2\nc,20,200,0.5\n"
pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")
EXAMPLE = Path(__file__).parents[2] / "examples" / "clients.csv"


@pytest.fixture
def fedweave(tmp_path, monkeypatch, capsys):
    """Return the program, called in this process in a folder of its own: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "good.csv").write_text(GOOD)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedweave", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return call


def test_json_is_the_plan_and_the_other_laws(fedweave):
    code, out, err = fedweave("plan", "good.csv", "--epsilon", "0.1", "--alpha", "2", "--json")
    found = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    delta, d = np.array([1.5, 0.5, 20]), np.array([1, 3, 2]) / 6
    B = (d * [1, 2, 0.5]) ** 2
    plan = latency_plan(delta, B, 2.0, 0.1)
    assert [c["client"] for c in found["clients"]] == ["a", "b", "c"]
    assert np.allclose([c["probability"] for c in found["clients"]], plan.probability)
    for key in ("cohort_size", "rounds", "round_seconds", "total_seconds"):
        assert found[key] == found["laws"]["planned"][key] == pytest.approx(getattr(plan, key))
    laws = {"norm": d * [1, 2, 0.5], "uniform": np.ones(3), "ratio": d}
    for name, score in laws.items():
        p = score / score.sum()
        costs = [rounds_needed(p, B, M, 2.0, 0.1) * expected_round_seconds(p, delta, M) for M in (1, 2, 3)]
        assert found["laws"][name]["total_seconds"] == pytest.approx(min(costs))
        assert found["laws"][name]["cohort_size"] == 1 + int(np.argmin(costs))
        assert found["total_seconds"] <= min(costs)


def test_the_cohort_the_floor_and_the_exhaustive_search_can_be_asked_for(fedweave):
    _, out, _ = fedweave("plan", "good.csv", "--epsilon", "1e-2", "--cohort", "2", "--floor", "0.2", "--json")
    found = json.loads(out)
    assert {law["cohort_size"] for law in found["laws"].values()} == {2}
    assert min(c["probability"] for c in found["clients"]) >= 0.2 - 1e-12
    _, fast, _ = fedweave("plan", EXAMPLE, "--epsilon", "0.1", "--json")
    _, slow, _ = fedweave("plan", EXAMPLE, "--epsilon", "0.1", "--json", "--exhaustive")
    assert json.loads(fast)["total_seconds"] <= 1.001 * json.loads(slow)["total_seconds"]


def test_the_table_names_everybody_fastest_first(fedweave):
    code, out, _ = fedweave("plan", "good.csv", "--epsilon", "0.1")
    assert code == 0
    assert out.startswith("Draw ")
    for word in ("planned", "norm", "uniform", "ratio", "0.50 s", "20.0 s"):
        assert word in out
    assert re.findall(r"^\s+([abc])\s", out, re.MULTILINE) == ["b", "a", "c"]
    assert "█" in out


def test_a_client_may_be_called_anything(fedweave, tmp_path):
    (tmp_path / "odd.csv").write_text(HEAD + '[red]<b>,1,5,1\n":smile: & co",2,5,1\n')
    code, out, _ = fedweave("plan", "odd.csv", "--epsilon", "0.1", "--html", "p.html")
    assert (code, "[red]<b>" in out, ":smile: & co" in out) == (0, True, True)
    page = (tmp_path / "p.html").read_text()
    assert "[red]&lt;b&gt;" in page
    assert "<b>" not in page


def test_a_large_fleet_is_shown_in_part(fedweave, tmp_path):
    rows = "".join(f"c{i},{1 + i},{10 + i},1\n" for i in range(300))
    (tmp_path / "many.csv").write_text(HEAD + rows)
    code, out, _ = fedweave("plan", "many.csv", "--epsilon", "0.1", "--cohort", "20", "--html", "sub/plan.html")
    assert (code, "… 260 more" in out, " c299 " in out, " c150 " in out) == (0, True, True, False)
    page = (tmp_path / "sub/plan.html").read_text()
    assert all(f">c{i}<" in page for i in range(300))


def test_the_page_stands_alone_and_a_picture_too(fedweave, tmp_path):
    code, out, _ = fedweave("plan", "good.csv", "--epsilon", "0.1", "--html", "plan.html")
    assert (code, "page: plan.html" in out) == (0, True)
    page = (tmp_path / "plan.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert page.count("<svg") == 1
    assert "against latency" in page
    assert "by norm, uniform and by ratio" in page
    assert "<code>--from RUN</code>" in page
    assert "`" not in page
    assert "fedweave plan good.csv --epsilon 0.1 --html plan.html" in page
    assert not re.search(r"(src|href)=.https?:|<script", page), "the page needs no network"
    assert fedweave("plan", "good.csv", "--epsilon", "0.1", "--html", "plan.svg")[0] == 0
    picture = (tmp_path / "plan.svg").read_text()
    assert picture.startswith("<svg")
    assert picture.rstrip().endswith("</svg>")
    assert fedweave("plan", "good.csv", "--epsilon", "0.1", "--html", tmp_path)[0] == 2


BAD = {  # the file, and words of which each must be on the error stream
    "client,samples\na,2\nb,3\n": [":1: the column 'latency_seconds' is missing"],
    "client,latency,samples,gradient_bound\na,1,2,1\n": [
        ":1: there is no column 'latency'. Did you mean 'latency_seconds'?",
        ":1: the column 'latency_seconds' is missing",
    ],
    HEAD + "a,fast,2,1\nb,2,3,1\n": [":2: the column 'latency_seconds' must be a number > 0. Got 'fast'"],
    HEAD + "a,1,2,1\nb,-2,3,1\n": [":3: the column 'latency_seconds'", "Got '-2'"],
    HEAD + "a,0,2,1\nb,2,3,1\n": [":2: the column 'latency_seconds'", "Got '0'"],
    HEAD + "a,inf,2,1\nb,nan,3,1\n": [":2: the column 'latency_seconds'", ":3: the column 'latency_seconds'"],
    HEAD + "a,1,2.5,1\nb,2,0,1\n": [":2: the column 'samples' must be a whole number > 0", "'2.5'", ":3: the column"],
    HEAD + "a,1,2,0\nb,2,3,\n": [":2: the column 'gradient_bound'", ":3: the column 'gradient_bound'", "Got ''"],
    HEAD + "a,1,2,1\n": [":2: the column 'client' names one client only"],
    HEAD: [":1: there are no rows"],
    "": [":1: the column 'client' is missing", "'latency_seconds' is missing"],
    HEAD + "a,1,2,1\nb,2,3,1\na,3,3,1\n": [":4: the column 'client' repeats 'a' of line 2"],
    HEAD + ",1,2,1\nb,2,3,1\n": [":2: the column 'client' is empty"],
    HEAD + "a,1,2,1,7\nb,2,3,1\n": [":2: there is a cell beyond the last column. Got '7'"],
    HEAD + "a,1\nb,2,3,1\n": [":2: the column 'samples'", ":2: the column 'gradient_bound'"],
    "client,client,latency_seconds,samples,gradient_bound\na,a,1,2,1\n": [":1: the column 'client' appears twice"],
    HEAD + "a,-1,0,x\na,2,3,1\n": [
        ":2: the column 'latency_seconds'", ":2: the column 'samples'", ":2: the column 'gradient_bound'",
        ":3: the column 'client' repeats",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), BAD.items(), ids=[f"file{i}" for i in range(len(BAD))])
def test_every_mistake_in_the_file_is_named_by_line_and_column(text, words, fedweave, tmp_path):
    (tmp_path / "bad.csv").write_text(text)
    code, out, err = fedweave("plan", "bad.csv", "--epsilon", "0.1", "--html", "page.html")
    assert (code, out) == (2, "")
    assert all(line.startswith("error: bad.csv:") for line in err.splitlines())
    assert all(word in err for word in words), err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("good.csv", ["--epsilon is required"]),
        ("good.csv --epsilon 0", ["--epsilon must be a number > 0", "'0'"]),
        ("good.csv --epsilon x", ["--epsilon", "'x'"]),
        ("good.csv --epsilon nan", ["--epsilon", "'nan'"]),
        ("good.csv --epsilon 1 --alpha -1", ["--alpha must be a number >= 0", "'-1'"]),
        ("good.csv --epsilon 1 --cohort 0", ["--cohort must be a whole number > 0", "'0'"]),
        ("good.csv --epsilon 1 --cohort 2.5", ["--cohort", "'2.5'"]),
        ("good.csv --epsilon 1 --cohort inf", ["--cohort", "'inf'"]),
        ("good.csv --epsilon 1 --floor 0.5", ["--floor", "at most 1/3"]),
        ("good.csv --epsilon 1 --floor 2", ["--floor", "'2'"]),
        ("good.csv --epsilom 1", ["--epsilom", "Did you mean '--epsilon'?"]),
        ("nowhere.csv --epsilon 1", ["'nowhere.csv'", "No such file", "client, latency_seconds"]),
        (". --epsilon 1", ["cannot be read"]),
        ("broken.csv --epsilon -1 --alpha z", ["broken.csv:2", "--epsilon", "--alpha"]),
        ("binary.csv --epsilon 1", ["binary.csv", "not text"]),
    ],
)
def test_wrong_options_are_told_at_once(typed, words, fedweave, tmp_path):
    (tmp_path / "broken.csv").write_text(HEAD + "a,-1,2,1\nb,2,3,1\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00client")
    code, out, err = fedweave("plan", *shlex.split(typed))
    assert (code, out) == (2, "")
    assert all(line.startswith("error: ") for line in err.splitlines())
    assert all(word in err for word in words), err


def test_help_shows_an_example_that_works(fedweave, tmp_path):
    code, out, _ = fedweave("plan", "--help")
    example = re.search(r"Example: fedweave (plan clients.csv .*)", out)
    assert (code, bool(example)) == (0, True)
    (tmp_path / "clients.csv").write_text(EXAMPLE.read_text())
    assert fedweave(*shlex.split(example[1]))[0] == 0
    assert (tmp_path / "plan.html").exists()


def test_a_spreadsheet_mark_and_spaces_do_no_harm(tmp_path):
    (tmp_path / "s.csv").write_text(HEAD + " a , 1.5 , 10 , 1\nb,2,10,1\n", encoding="utf-8-sig")
    clients = read_clients(tmp_path / "s.csv")
    assert clients.name == ("a", "b")
    assert clients.latency.tolist() == [1.5, 2.0]


def test_laws_are_compared_at_their_own_best_cohort(tmp_path):
    (tmp_path / "good.csv").write_text(GOOD)
    clients = read_clients(tmp_path / "good.csv")
    laws = compare_laws(clients, 1.0, 0.05, None)
    assert list(laws) == ["planned", "norm", "uniform", "ratio"]
    assert all(law.total_seconds >= laws["planned"].total_seconds for law in laws.values())
    with pytest.raises(BadInput, match="cohort_sizes"):
        compare_laws(clients, 1.0, 0.05, 0)


@pytest.fixture
def simulated(fedweave):
    """Return the folder of a run of eight clients with uniform draws, and what the world was."""
    world = "--clients 8 --partition dirichlet:0.3 --system latency --seed 4"
    words = f"run latency_uniform --data digits --model logistic {world} --rounds 12 --per-round 6 --steps 3 --out made"
    code, _, err = fedweave(*shlex.split(words))
    assert code == 0, err
    return fw.load_result("made")


def test_a_run_folder_is_planned_for_as_its_world_is(fedweave, simulated):
    """Latencies, samples and the law of the plan against the world that the seed drew and the data's own shares."""
    code, out, err = fedweave("plan", "--from", "made", "--epsilon", "0.1", "--cohort", "4", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    samples = np.array(simulated.manifest["labels"]).sum(1)
    world = fw.system.Latency().population(worlds.equal_clients(8), 1, 4).latency
    rows = simulated.clients
    assert np.unique(rows["client"]).size == 8, "everybody was asked"
    assert np.allclose([c["latency_seconds"] for c in found["clients"]], world)
    assert [c["samples"] for c in found["clients"]] == samples.tolist()
    G, d = np.array([c["gradient_bound"] for c in found["clients"]]), samples / samples.sum()
    largest = [rows["first_gradient"][rows["client"] == i].max() for i in range(8)]
    assert np.corrcoef(G, largest)[0, 1] > 0.3
    early = rows["round"] <= 5
    r, c, g, e = (rows[k][early] for k in ("round", "client", "first_gradient", "expected"))
    w = d[c] * rows["count"][early] / e
    mean = [
        [np.average(v[r == t], weights=w[r == t]) for t in range(1, 6)]
        for v in (rows["first_loss"][early], d[c] * g**2 / e)
    ]
    alpha = np.mean(np.sqrt(np.arange(1, 6)) * mean[0] - np.array(mean[1]))
    assert found["alpha"] == pytest.approx(alpha)
    plan = latency_plan(world, (d * G) ** 2, alpha, 0.1, [4])
    assert np.allclose([c["probability"] for c in found["clients"]], plan.probability, atol=1e-9)
    assert found["largest_weight"] == pytest.approx((1 / (4 * plan.probability)).max())
    _, out, _ = fedweave("plan", "--from", "made", "--epsilon", "0.1")
    assert f"α = {alpha:.3g} as estimated from the first 5 rounds" in out
    _, out, _ = fedweave("plan", "--from", "made", "--epsilon", "0.1", "--alpha", "2")
    assert "α = 2 as given; the run says" in out
    path = simulated.folder / "experiment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"weights": "equal"}))
    _, out, _ = fedweave("plan", "--from", "made", "--epsilon", "0.1", "--cohort", "4", "--json")
    assert {c["samples"] for c in json.loads(out)["clients"]} == {1}, "clients count equally, whatever data they have"


def test_a_run_follows_a_plan(fedweave, simulated, tmp_path):
    _, out, _ = fedweave("plan", "--from", "made", "--epsilon", "0.1", "--cohort", "4", "--json")
    (tmp_path / "plan.json").write_text(out)
    p = np.array([c["probability"] for c in json.loads(out)["clients"]])
    world = "--data digits --model logistic --clients 8 --partition dirichlet:0.3 --system latency"
    words = shlex.split(f"{world} --rounds 2 --steps 1 --plan plan.json")
    code, _, err = fedweave("run", "latency_ratio", *words, "--seed", 4, "--out", "followed")
    assert (code, "warning" in err) == (0, False)
    rows = fw.load_result("followed").clients
    assert np.allclose(rows["expected"], 4 * p[rows["client"]])
    assert np.bincount(rows["round"], rows["count"]).tolist() == [0, 4, 4]
    assert fw.load_result("followed").summary["method"] == "latency_ratio_planned"
    code, _, err = fedweave("run", "latency_ratio", *words, "--seed", 1, "--out", "other")  # clients have other samples
    assert (code, "do not have the samples that the plan was made for" in err) == (0, True)
    code, _, err = fedweave("compare", "latency_ratio", *words)
    assert (code, "compare has no option '--plan', which belongs to run." in err) == (2, True)
    code, _, err = fedweave("run", "fedavg", *words, "--out", "biased")
    assert (code, "does not weigh answers by 1/(M p)" in err) == (0, True)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--clients 9 --plan plan.json", "plan.json' is for 8 clients, but there are 9: give --clients 8"),
        ("--clients 8 --per-round 3 --plan plan.json", "--per-round and --plan exclude each other"),
        ("--plan nowhere.json", "nowhere.json' cannot be read: No such file"),
        ("--plan bad.json", "bad.json' cannot be read"),
        ("--plan good.csv", "is a file of clients. The plan is the JSON that `fedweave plan good.csv"),
        ("--plan odd.json", "sum to 1"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_in_one_sentence(typed, words, fedweave, tmp_path):
    people = [{"probability": 0.125}] * 8
    (tmp_path / "plan.json").write_text(json.dumps({"cohort_size": 4, "clients": people}))
    (tmp_path / "odd.json").write_text(json.dumps({"cohort_size": 4, "clients": people[1:]}))
    (tmp_path / "bad.json").write_text(json.dumps({"cohort_size": "4", "clients": people}))
    code, out, err = fedweave("run", "latency_ratio", "--data", "digits", *shlex.split(typed))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_what_a_run_does_not_tell_is_said(fedweave, simulated, tmp_path):
    assert fedweave("plan", "--from", "nowhere", "--epsilon", "1")[2].count("There is no folder 'nowhere'.") == 1
    assert "either a file of clients or --from" in fedweave("plan", "--epsilon", "1")[2]
    assert "either a file of clients or --from" in fedweave("plan", "good.csv", "--from", "made", "--epsilon", "1")[2]
    with sqlite3.connect(tmp_path / "made/run.sqlite") as db:
        db.execute("UPDATE clients SET first_loss = 0")
    code, _, err = fedweave("plan", "--from", "made", "--epsilon", "1", "--cohort", "3")
    assert (code, err.startswith("warning: eq. 27 is negative in this run, so α is unknown")) == (0, True)
    with sqlite3.connect(tmp_path / "made/run.sqlite") as db:
        for column in ("first_loss", "first_gradient"):
            db.execute(f"ALTER TABLE clients DROP COLUMN {column}")
        db.execute("UPDATE clients SET expected = NULL")
    path = tmp_path / "made/manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"samples": None, "labels": None}))
    code, out, err = fedweave("plan", "--from", "made", "--epsilon", "1")
    assert (code, out) == (2, "")
    for word in ("how many samples", "column first_gradient", "column expected", "fedweave run latency_ratio"):
        assert word in err


def test_what_the_file_does_not_say_is_the_same_for_all(fedweave, tmp_path):
    (tmp_path / "short.csv").write_text("client,latency_seconds\na,1.5\nb,0.5\nc,20\n")
    (tmp_path / "long.csv").write_text(HEAD + "a,1.5,1,1\nb,0.5,1,1\nc,20,1,1\n")
    short, whole = (json.loads(fedweave("plan", f"{n}.csv", "--epsilon", "1", "--json")[1]) for n in ("short", "long"))
    assert short["clients"] == whole["clients"]
    (remark,) = set(short["remarks"]) - set(whole["remarks"])
    assert remark == "The file has no samples and no gradient_bound: all clients were taken as equal in that."


def test_a_plan_says_what_it_is_worth(fedweave, tmp_path):
    """Equal latencies: more draws never cost time, so that M lands on N, and norm selection is the plan."""
    (tmp_path / "even.csv").write_text(HEAD + "a,1,100,1\nb,1,100,1\nc,1,100,2\n")
    code, out, err = fedweave("plan", "even.csv", "--epsilon", "0.01")
    assert code == 0
    assert "Totals are bounds, not forecasts" in out
    assert "α = 1, because none was given" in out
    assert "counts 1.33× its data share" in out, "p = 1/4: 1/(3/4)"
    assert err.startswith("warning: the best cohort size is 3, as many draws as clients")
    _, out, err = fedweave("plan", "even.csv", "--epsilon", "0.01", "--cohort", "3", "--html", "p.html")
    assert err == ""
    assert "Totals are bounds, not forecasts" in (tmp_path / "p.html").read_text()
