"""The command ``fedweave verify``: check a run folder from the outside, its states, its rows and its audit log."""

from __future__ import annotations

import hashlib
import json as json_text
import os
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Annotated, NamedTuple

from cyclopts import Parameter

from fedweave.cli.parameters import Json
from fedweave.core.settings import BadInput
from fedweave.runs.folders import BEST
from fedweave.store.audit import FILE, check
from fedweave.store.contents import Manifest, StoredExperiment
from fedweave.store.database import reading
from fedweave.store.run_folder import RunFolder
from fedweave.tables.files import read_json, shown_path


class Findings(NamedTuple):
    """What a run folder holds, and what is wrong with it."""

    rounds: int
    states: int  # intact ones
    verdicts: dict[str, int]  # number of updates accepted, refused, lost, failed, by the audit log
    chain: str  # the last digest of the audit log; empty without a log
    problems: list[str]
    digest: str = ""  # of the newest model, as in the result's summary


def verify(folder: str | Path) -> Findings:
    """Return what is in a run folder, and all inconsistencies."""
    folder = Path(folder)
    store = RunFolder.open(folder, write=False)
    with closing(store), reading(folder):
        rounds = store.columns("rounds")["round"].tolist()
        problems = [] if rounds == list(range(1, len(rounds) + 1)) else ["The rounds are not 1, 2, 3, … once each."]
        for name, kind in (("experiment.json", StoredExperiment), ("manifest.json", Manifest)):
            try:
                read_json(folder / name, kind)
            except BadInput as e:
                problems.append(str(e))
        found, models = 0, dict[int, str]()
        for round, name, state in store.states():
            if state is None:
                problems.append(f"{name} is missing or damaged.")
            else:
                found, models[round] = found + 1, hashlib.sha256(state.x.tobytes()).hexdigest()
        end = store.audit_end()
        verdicts: Counter[str] = Counter()
        for number, line, problem in check(folder, end) if end else ():
            if problem:
                problems.append(f"{FILE}:{number} {problem}.")
            elif line and line["verdict"] == "model":
                if models.get(line["round"], line.get("sha256")) != line.get("sha256"):
                    problems.append(f"{FILE}:{number} has another model than the state of round {line['round']}.")
            elif line:
                verdicts[line["verdict"]] += 1
        digest = models[max(models)] if models else ""
        return Findings(len(rounds), found, dict(verdicts), end.chain if end else "", problems, digest)


def command(*folders: Annotated[Path, Parameter(metavar="RUN")], json: Json = False) -> None:
    """Check that runs are intact: every round once, states by their digests, the audit log line by line.

    The digest is that of the newest model: equal digests are equal bits. Of two folders it also says whether their
    models are equal. `--audit` makes a run keep an audit log. If something is wrong, the exit code is 1 and the
    first bad line is named.
    """
    if not folders:
        raise BadInput("verify needs at least one run folder, such as: fedweave verify runs/fedavg-20260101-120000")
    runs = {folder: _runs_in(folder) or [folder] for folder in folders}
    found = {str(run): verify(run) for several in runs.values() for run in several}
    if json:
        print(json_text.dumps({run: findings._asdict() for run, findings in found.items()}))
    for run, findings in found.items():
        if not json:
            print(f"{run}: {_sentence(findings)}")
        for problem in findings.problems:
            print(f"error: {run}: {problem}", file=sys.stderr)
    if len(runs) == 2 and not json:
        print(_equality(*({_name(f, run): found[str(run)] for run in several} for f, several in runs.items())))
    if any(findings.problems for findings in found.values()):
        sys.exit(1)


def _runs_in(folder: Path) -> list[Path]:
    """Return the run folders in a folder, those of a sweep's best points too; refuse links, which may lead anywhere."""
    places = ("*/run.sqlite", f"{BEST}/*/run.sqlite") if os.path.isdir(folder) else ()
    found = sorted(p.parent for place in places for p in folder.glob(place))
    if links := [p for run in found for p in (run.parent, run) if p != folder and p.is_symlink()]:
        raise BadInput(f"{shown_path(links[0])} is a link: name the folder that it leads to.")
    return found


def _name(folder: Path, run: Path) -> str:
    return "" if run == folder else str(run.relative_to(folder))


def _equality(one: dict[str, Findings], other: dict[str, Findings]) -> str:
    """Say whether the runs of two folders, each with its namesake, have the same models."""
    if one.keys() != other.keys():
        return "not compared: the two folders do not have the same runs"
    rest = [name for name in one if not one[name].digest or one[name].digest != other[name].digest]
    if not rest:
        return "equal: the models of both are the same, bit for bit"
    which = f" ({', '.join(rest)})" if any(rest) else ""
    return f"not equal: {len(rest)} of {len(one)} models differ{which}"


def _sentence(findings: Findings) -> str:
    parts = [f"{findings.rounds} rounds", f"{findings.states} intact states"]
    parts += [f"{count} {verdict}" for verdict, count in findings.verdicts.items()]
    log = f"audit log ends with {findings.chain}" if findings.chain else "no audit log"
    model = f"model {findings.digest}" if findings.digest else "no model"
    return f"{'broken' if findings.problems else 'intact'}: {', '.join(parts)}; {model}; {log}"
