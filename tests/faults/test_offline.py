"""No network: what needs none makes not one attempt to use it."""

import json
import shlex

import pytest
from fleet import THOROUGH

import fedweave as fw

TINY = shlex.split("--data digits --clients 6 --per-round 3 --rounds 2 --system dynamic --workers 1")


def test_run_compare_and_report_never_try_to_connect(zygote, tmp_path):
    """The guard is an audit hook of the interpreter, so no library can go around it in Python."""
    log = tmp_path / "log.txt"
    words = (
        *("run", "fedavg", *TINY, "--out", "r", "&&", "compare", "fedavg", "fedprox", *TINY, "--out", "c", "&&"),
        *("report", "c", "r", "--html", "page.html", "&&", "resume", "r", "&&", "export", "r"),
    )
    code, out, err = zygote.command(*words, cwd=tmp_path, offline=str(log))
    assert code == 0, err
    assert out.count("report: ") == 2
    assert log.read_text() == "guarded\n"
    assert (tmp_path / "page.html").stat().st_size > 10_000


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.skipif(not THOROUGH, reason="starting workers takes long; see also test_simulator.py")
def test_worker_processes_do_not_try_either_and_change_no_bit(workers, zygote, tmp_path):
    log = tmp_path / "log.txt"
    words = ["run", "fedavg", *TINY[:-1], str(workers), "--out", "r", "--json"]
    code, out, err = zygote.command(*words, cwd=tmp_path, offline=str(log))
    assert code == 0, err
    tried = log.read_text().splitlines()
    assert set(tried) == {"guarded"}
    assert len(tried) > 1, "the workers were guarded too"
    alone = fw.Experiment(
        fw.methods.fedavg(3), "digits", fw.partition.Dirichlet(6, 0.5), system=fw.system.Dynamic(), rounds=2, workers=1
    )
    assert json.loads(out)["digest"] == fw.run(alone).summary["digest"]


def test_the_guard_would_notice(zygote, tmp_path):
    """A data set that must be fetched: the attempt is refused, written down, and told as bad input."""
    log = tmp_path / "log.txt"
    code, _, err = zygote.command("run", "fedavg", "--data", "cifar10", cwd=tmp_path, offline=str(log), no_data=True)
    assert code == 2, err
    assert "Traceback" not in err
    assert len(log.read_text().splitlines()) > 1
