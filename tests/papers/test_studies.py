"""Every study: it is named, runs at smoke scale, is drawn and judged; what it declares fits the ledger."""

import json
import re
from dataclasses import replace

import pytest
from matplotlib.layout_engine import ConstrainedLayoutEngine

from fedweave import papers
from fedweave.papers.common import ledger
from fedweave.papers.common.judge import settle
from fedweave.papers.common.page import page
from fedweave.papers.common.recorded import to_json, to_recorded
from fedweave.papers.common.unfinished import thin
from fedweave.papers.fedaware.setup import SETTINGS, client_lr, zoo

STUDIES = papers.studies()


@pytest.fixture
def without_margins(monkeypatch):
    """Figures are drawn where they are: making room for their labels takes longer than all the rest."""
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda *_: None)


@pytest.mark.usefixtures("without_margins")
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_runs_is_drawn_and_judged(name):
    outcome = papers.reproduce(name)  # stand-ins replace missing data sets, so nothing is skipped
    study, plain = outcome.study, outcome.plain()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert [row["method"] for row in plain["rows"]][: len(outcome.records["paper"])] == list(outcome.records["paper"])
    judged = settle(outcome.judged())
    could = [j for j in judged if j.claim.column != "tuned"]  # tuning is asked for
    assert all(j.seeds or j.fidelity == "exact" for j in could), [j.evidence for j in could]
    content = to_recorded(outcome)
    html = page([content], {name: judged}, name)
    assert html.count("<svg xmlns") == len(study.panels) * len(outcome.records)
    assert "nan" not in re.sub("<svg.*?</svg>", "", html, flags=re.DOTALL)
    assert len(to_json(content.model_dump())) < 100_000
    if not study.needs_reports:  # then runs that are carried on do not have them
        thinned = {c: {a: [thin(run) for run in runs] for a, runs in of.items()} for c, of in outcome.records.items()}
        again = to_recorded(replace(outcome, records=thinned))
        assert again.model_copy(update={"cost": None}) == content.model_copy(update={"cost": None})


@pytest.mark.parametrize("name", STUDIES)
def test_what_a_study_declares(name):
    study = STUDIES[name]
    assert study.name == name
    assert study.panels
    assert study.measures
    assert set(study.seeds) == {"smoke", "laptop", "paper"}
    assert set(study.published) <= set(study.measures)
    open_links = any(str(value).startswith("ours: ") for value in study.settings("paper").values())
    assert study.exact or study.fidelity("paper") == ("faithful" if open_links else "published")
    assert study.exact or study.fidelity("smoke") == "toy"


@pytest.mark.parametrize("where", SETTINGS)
def test_fedawares_baselines_have_the_papers_server_steps(where):
    """Appendix C.1: η = 1, tuned for FedYogi alone; the local rate is 0.01 except in one of the authors' scripts."""
    for name, make in zoo("cifar10", where).items():
        assert make(10).server.lr == (0.01 if name == "fedyogi" else 1.0), name
        assert client_lr(name, "cifar10", where) == (0.1 if (name, where) == ("fedavgm", "statistical") else 0.01)


def test_faithful_laptop_sizes_keep_what_the_protocol_says():
    for study in STUDIES.values():
        if study.fidelity("laptop") == "faithful":
            published, used = study.settings("paper"), study.settings("laptop")
            assert all(published[k] == used[k] for k in ("steps an epoch", "participation", "client sizes", "tuning"))


def test_the_ledger_names_items_and_measures_that_exist():
    converted = {name.split("/")[0] for name in STUDIES}
    for claim in ledger.claims().values():
        if claim.paper in converted:
            study = STUDIES[claim.item]
            assert claim.measure in study.measures, claim.id
            assert claim.seeds >= (10 if claim.primary else 5) or study.exact, claim.id
            assert study.exact or study.seeds["paper"] >= claim.seeds, claim.id
            assert claim.kind not in ("value", "above", "below") or claim.value is not None, claim.id


def test_each_paper_has_one_primary_claim():
    for section in ledger.SECTIONS:
        primary = sum(c.primary for c in ledger.claims().values() if c.paper == section)
        assert primary == (section in ledger.PAPERS)


def test_frozen_claims_have_not_changed():
    known = ledger.frozen()
    changed = [id for id, (digest, _) in known.items() if ledger.claims()[id].digest != digest]
    assert not changed
