"""kill -9 of compare, report, export and reproduce: the next same command, or resume, finishes and leaves no rest."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest
from fleet import COMMAND_POINTS, POINTS, THOROUGH, WORLD

KILLED = -signal.SIGKILL
FILES = ["file opened", "file written", "file synced", "file renamed"]
FOLDERS = ["folder made", "folder filled", "folder named"]
OPTIONS = [word for name, value in {**WORLD, "rounds": "3"}.items() for word in (f"--{name.replace('_', '-')}", value)]
COMPARE = ["compare", "fedavg", "scaffold", *OPTIONS, "--out", "c", "--json"]
TIMES = {"date": "", "cost": {}}  # of a record: midnight may lie between two runs
REPRODUCE = ["reproduce", "feddd/tiny", "--html", "page.html", "--record", "."]


def test_every_command_has_points():
    assert all(COMMAND_POINTS.values())
    assert sorted(len(points) for points in COMMAND_POINTS.values())[-1] >= 3


def kill(zygote, words, cwd, point, nth=1):
    strike = {"point": point, "nth": nth, "how": "SIGKILL"}
    return zygote.command(*words, cwd=cwd, strike=strike, plain_page=not THOROUGH)[0] == KILLED


def done(zygote, words, cwd):
    code, out, err = zygote.command(*words, cwd=cwd, plain_page=not THOROUGH)  # drawing takes long, and leaves nothing
    assert code == 0, err
    return out


def tree(folder):
    """Return the names of all files, but for those in which SQLite keeps its own."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if not name.endswith(("-wal", "-shm", "out.txt", "err.txt")))


def digests(out):
    return [run["digest"] for run in json.loads(out)["runs"]]


@pytest.fixture(scope="module")
def undisturbed(zygote, tmp_path_factory):
    """A comparison that was let alone: its folder, the digests it came to, and its files."""
    base = tmp_path_factory.mktemp("compared")
    found = digests(done(zygote, COMPARE, base))
    return base / "c", found, tree(base)


# The plan is the first file, then two files of each run and its states.
EXTENDING = ["compare: extending", "extending", "extended"]  # only when it is given another length
CASES = [(point, 1) for point in (*COMMAND_POINTS["compare"], *COMMAND_POINTS["report"], *FOLDERS)]
CASES = [(point, nth) for point, nth in CASES if point not in EXTENDING]
CASES += [(point, nth) for point in FILES for nth in (1, 3)] + [("compare: run finished", 2), ("folder filled", 2)]
CASES += [(point, nth) for point in POINTS for nth in (1, 3, 7)] if THOROUGH else [("committed", 3)]


@pytest.mark.parametrize(("point", "nth"), sorted(set(CASES)))
def test_a_killed_comparison(point, nth, zygote, undisturbed, tmp_path):
    """Every other time by the same command, and by resume where the comparison has begun."""
    _, wanted, files = undisturbed
    if not kill(zygote, COMPARE, tmp_path, point, nth):
        assert THOROUGH, f"{point} is not passed {nth} times"
    begun = (tmp_path / "c" / "compare.json").exists()
    words = ["resume", "c", "--json"] if begun and nth % 2 else COMPARE
    assert digests(done(zygote, words, tmp_path)) == wanted
    assert tree(tmp_path) == files


@pytest.mark.parametrize(("point", "nth"), [*((point, 1) for point in EXTENDING), ("file renamed", 1), ("recorded", 2)])
def test_a_killed_extension(point, nth, zygote, undisturbed, tmp_path):
    """Of a comparison, by resume: the same command again finishes it, and so does resume alone once it is planned."""
    shutil.copytree(undisturbed[0], tmp_path / "c")
    longer = [word if before != "--rounds" else "5" for before, word in zip(["", *COMPARE], COMPARE, strict=False)]
    (tmp_path / "longer").mkdir()
    wanted = digests(done(zygote, longer, tmp_path / "longer"))
    assert kill(zygote, ["resume", "c", "--rounds", "5"], tmp_path, point, nth)
    planned = point != "compare: extending"
    assert digests(done(zygote, ["resume", "c", *([] if planned else ["--rounds", "5"]), "--json"], tmp_path)) == wanted
    assert done(zygote, ["verify", "c"], tmp_path).count("intact: 5 rounds") == 2


@pytest.mark.parametrize("point", [*COMMAND_POINTS["report"], *FILES])
def test_a_killed_report(point, zygote, undisturbed, tmp_path):
    """The page is the old one or the new one, never half of one, also where there was none."""
    compared, _, files = undisturbed
    shutil.copytree(compared, tmp_path / "c")
    page = tmp_path / "c" / "report.html"
    page.write_text("old")
    assert kill(zygote, ["report", "c"], tmp_path, point)
    assert page.read_text() == "old" or page.read_text().endswith("</html>\n")
    done(zygote, ["report", "c"], tmp_path)
    assert page.read_text().endswith("</html>\n")
    assert tree(tmp_path) == files


@pytest.mark.parametrize("to", ["csv", "parquet"] if THOROUGH else ["csv"])
@pytest.mark.parametrize("nth", [1, 4] if THOROUGH else [2])
@pytest.mark.parametrize("point", [*COMMAND_POINTS["export"], *FILES])
def test_a_killed_export(point, nth, to, zygote, undisturbed, tmp_path):
    compared, _, files = undisturbed
    for name in ("whole", "c"):
        shutil.copytree(compared, tmp_path / name / "c")
    done(zygote, ["export", "c", "--to", to], tmp_path / "whole")
    made = {*tmp_path.rglob(f"whole/**/*.{to}"), *tmp_path.rglob("whole/**/summary.csv")}
    tables = {path.relative_to(tmp_path / "whole"): path.read_bytes() for path in made}
    assert len(tables) == 5, "two of each run, and one of the comparison"
    assert kill(zygote, ["export", "c", "--to", to], tmp_path / "c", point, nth)
    for path, content in tables.items():
        assert not (tmp_path / "c" / path).exists() or (tmp_path / "c" / path).read_bytes() == content
    done(zygote, ["export", "c", "--to", to], tmp_path / "c")
    assert all((tmp_path / "c" / path).read_bytes() == content for path, content in tables.items())
    assert tree(tmp_path / "c") == sorted([*files, *map(str, tables)])


@pytest.fixture(scope="module")
def reproduced(zygote, tmp_path_factory):
    """The page, the record and the kept runs of a reproduction that nothing interrupted."""
    folder = tmp_path_factory.mktemp("reproduced")
    done(zygote, REPRODUCE, folder)
    return folder


@pytest.mark.parametrize("point", ["sampled", *COMMAND_POINTS["reproduce"], *FILES])
def test_a_killed_reproduction(point, zygote, tmp_path, reproduced):
    """Finished runs are kept; the next same command leaves the same files as if nothing had happened."""
    assert kill(zygote, REPRODUCE, tmp_path, point)
    done(zygote, REPRODUCE, tmp_path)
    files = tree(reproduced)
    assert tree(tmp_path) == files
    assert (tmp_path / "page.html").read_bytes() == (reproduced / "page.html").read_bytes()
    after, before = (json.loads((f / "feddd-tiny.smoke.json").read_text()) for f in (tmp_path, reproduced))
    assert {**after, **TIMES} == {**before, **TIMES}


@pytest.mark.skipif(not THOROUGH, reason="a minute or two: make faults")
def test_a_reproduction_killed_ten_times_at_random(tmp_path):
    """Real processes and their workers, killed whenever it happens; what is left is continued to the same files."""
    words = [sys.executable, "-m", "fedweave", "reproduce", "latency/table1/fashion_mnist/dir", "--html", "page.html"]
    rng, folders = np.random.default_rng(7), [tmp_path / "whole", tmp_path / "killed"]

    def start(folder):
        folder.mkdir(exist_ok=True)
        environment = os.environ | {"FEDWEAVE_CACHE": str(folder / "kept")}
        return subprocess.Popen([*words, "--record", "."], cwd=folder, env=environment, stderr=subprocess.DEVNULL)

    begin = time.monotonic()
    assert start(folders[0]).wait() == 0
    whole = time.monotonic() - begin
    for _ in range(10):
        program = start(folders[1])
        with suppress(subprocess.TimeoutExpired):
            program.wait(float(rng.uniform(0, whole)))
        program.kill()
        program.wait()
    assert start(folders[1]).wait() == 0
    assert tree(folders[1]) == tree(folders[0])
    pages = [(folder / "page.html").read_bytes() for folder in folders]
    assert pages[0] == pages[1]
    name = "latency-table1-fashion_mnist-dir.smoke.json"
    found = [{**json.loads((folder / name).read_text()), **TIMES} for folder in folders]
    assert found[0] == found[1]


PROGRAM = """
import time
from fedweave.papers.common.parallel import run_as_ready
for n, _ in enumerate(run_as_ready(time.sleep, ((n, (0 if n < 4 else 600,)) for n in range(8)))):
    print(n + 1, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there a process does not learn that its parent has gone")
def test_the_workers_of_a_killed_reproduction_end(tmp_path):
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert program.stdout
    for line in program.stdout:
        if line.startswith("4"):
            break
    workers = psutil.Process(program.pid).children(recursive=True)
    os.kill(program.pid, signal.SIGKILL)
    program.wait()
    begin = time.monotonic()
    left = psutil.wait_procs(workers, timeout=60)[1]
    for process in left:
        process.kill()
    assert workers
    assert not left, f"after {time.monotonic() - begin:.0f} s"
