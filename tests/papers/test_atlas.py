"""The atlas shows every claim once, says why what was not run was not, and is what the committed files give."""

import importlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from collections import Counter
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedweave
from fedweave import papers
from fedweave.cli.app import app
from fedweave.core.settings import BadInput
from fedweave.papers.atlas import pages
from fedweave.papers.atlas.archive import build_archive
from fedweave.papers.atlas.contents import read_about, read_contents, shown_difference
from fedweave.papers.atlas.recipes import recipe
from fedweave.papers.common import parallel, reproduction
from fedweave.papers.common.ledger import PAPERS, claims
from fedweave.papers.common.recorded import file_name, read_recorded

ROOT = Path(__file__).parents[2]
REPOSITORY = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="not part of an installed package")
SMOKE = ("latency/fig3", "delta/fig3", "fedaware/fig9/hybrid+")


class Page(HTMLParser):
    """Ids, links, texts of rows, and what would be fetched."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.fetched = Counter(), [], []
        self.rows, self.stack = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if "id" in found:
            self.ids[found["id"]] += 1
        if tag == "a":
            self.links.append(found["href"])
        self.fetched += [found[name] for name in ("src", "srcset", "data", "action") if name in found]
        if tag == "link":
            self.fetched.append(found.get("href"))
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
            self.stack.append(tag)

    def handle_endtag(self, tag):
        if tag == "td":
            self.stack.pop()

    def handle_data(self, data):
        if self.stack:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return recorded outcomes of three items, one of them from before curves were recorded."""
    target = tmp_path_factory.mktemp("records")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "PROCESSES", 1)
        for item in SMOKE:
            papers.record(papers.reproduce(item), target)
    old = json.loads((target / f"{file_name('delta/fig3', 'smoke')}.json").read_text(encoding="utf-8"))
    for name in ("panels", "cost", "origins"):
        del old[name]
    (target / f"{file_name('delta/fig3', 'smoke')}.json").write_text(json.dumps(old), encoding="utf-8")
    return target


@pytest.fixture(scope="module")
def atlas(folder):
    return pages(folder)


def without_figures(text):
    return re.sub(r"<svg xmlns.*?</svg>", "<svg>", text, flags=re.DOTALL)


@REPOSITORY
def test_the_committed_pages_are_what_make_atlas_writes(monkeypatch):
    """But for the figures, whose letters depend on the version of matplotlib: they are not drawn again."""
    monkeypatch.setattr("fedweave.papers.common.page.draw", lambda *_: "<svg xmlns></svg>")
    made = {name: without_figures(text) for name, text in pages(ROOT / "results").items()}
    kept = {p.name: without_figures(p.read_text(encoding="utf-8")) for p in (ROOT / "docs" / "atlas").iterdir()}
    assert sorted(made) == sorted(kept)
    assert all(made[name] == kept[name] for name in made), "run `make results`"
    assert sum(p.stat().st_size for p in (ROOT / "docs" / "atlas").iterdir()) < 3_000_000


def test_every_link_leads_somewhere_and_nothing_is_fetched(atlas):
    found = {name: Page(text) for name, text in atlas.items()}
    for name, page in found.items():
        assert not page.fetched
        assert max(page.ids.values()) == 1, page.ids.most_common(3)
        for address in page.links:
            file, _, part = address.partition("#")
            assert file in found, address
            assert not part or found[file].ids[part], address
        assert not re.search(r"@import|url\((?!#)", atlas[name])


def test_the_front_page_has_every_claim_with_its_verdict(atlas, folder):
    rows = [row for row in Page(atlas["index.html"]).rows if len(row) == 6 and row[4]]
    expected = Counter((entry["claim"], entry["verdict"]) for entry in papers.list_claims(folder))
    ledger = [row for row in rows if row[4] in ("primary", "exploratory", "beyond the paper")]
    assert Counter((row[1], row[2]) for row in ledger) == expected
    left = [row[2] == "not run" for row in ledger]
    assert left == sorted(left), "what was run comes first"


def test_the_front_page_counts_what_was_run_of_the_papers_and_of_ours_apart(atlas, folder):
    lede = re.search(r'<p class="lede">(.*?)</p>', atlas["index.html"])[1]
    for ours in (False, True):
        found = [entry["verdict"] for entry in papers.list_claims(folder) if entry["beyond"] == ours]
        assert f"{len(found):,} " in lede
        assert f"{len(found) - found.count('not run')} of them run: {found.count('confirmed')} confirmed" in lede


@REPOSITORY
def test_items_of_ours_have_a_full_size_and_the_machine_readable_value_stays(capsys):
    contents = read_contents(ROOT / "results")
    ours = [j for j, _ in contents.judged if j.claim.item.startswith("beyond/") and j.fidelity == "published"]
    theirs = [j for j, _ in contents.judged if not j.claim.item.startswith("beyond/")]
    assert {j.shown_fidelity for j in ours} == {"full size"}
    assert all(j.shown_fidelity == j.fidelity for j in theirs)
    assert {j.plain()["fidelity"] for j in ours} == {"published"}
    rows = [row for row in Page(pages(ROOT / "results")["index.html"]).rows if len(row) == 6]
    assert {row[3] for row in rows if row[0] == read_about()["beyond"].name} <= {"", "full size", "faithful", "toy"}


@REPOSITORY
def test_pages_of_ours_have_no_columns_of_what_was_printed():
    made = pages(ROOT / "results")
    assert 'data-is="where">ours' not in made["beyond.html"]
    assert "<th scope=col>published</th>" not in made["beyond.html"]
    assert "<th scope=col>published</th>" in made["fedacs.html"]


@REPOSITORY
def test_numbers_say_what_they_are_multiples_of_and_where_all_runs_are_equal():
    contents = read_contents(ROOT / "results")
    judged = {j.claim.id: j for j, _ in contents.judged}
    assert contents.remark(judged["beyond/exact-focus-even"]) == " the bound of 1e-06"
    assert contents.remark(judged["beyond/slow-feddyn-static"]) == " the bound of 0.1"
    equal = judged["beyond/blind-fedacs-absent"]
    assert shown_difference(equal) == ("1×", "the same in every run", "—")
    assert equal.evidence.endswith("; the same in every run")
    assert not [j.claim.id for j in judged.values() if re.search(r"p = 0\b(?!\.)", j.evidence)]


def test_claims_that_were_not_run_say_why_on_the_front_page(atlas, folder):
    contents = read_contents(folder)
    rows = Counter((row[1], row[5]) for row in Page(atlas["index.html"]).rows if len(row) == 6 and row[2] == "not run")
    left = [j for j, _ in contents.judged if j.verdict == "not run"]
    why = {j.claim.id: contents.why_not_run(j) for j in left}
    said = Counter(
        (j.claim.claim, f"{why[j.claim.id][0]}{f' (cost: {c})' if (c := why[j.claim.id][1]) else ''}") for j in left
    )
    assert rows == said


@REPOSITORY
def test_a_difference_names_the_deciding_rival_and_the_side_of_what_is_printed():
    contents = read_contents(ROOT / "results")
    found = {j.claim.id: contents.remark(j) for j, _ in contents.judged}
    assert found["latency/faster-fashion-dir"] == " against ratio"
    assert found["feddd/time-mnist-iid-88"] == " against fedcs", "the closest, not the first"
    assert found["latency/size-fashion-dir-ratio"] == ", smaller than printed"
    assert found["feddd/time-mnist-iid-88-size-oort"] == ", smaller than printed"
    assert found["feddd/time-mnist-iid-88-size-fedcs"] == "", "undecided, one rival"


def test_a_cost_is_named_only_where_it_is_known(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "r")
    assert "known cost" in pages(tmp_path / "r")["index.html"]
    for path in (tmp_path / "r").glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        if "cost" in content:
            content["cost"] = {"runs": 4, "processor_seconds": 0.0, "wall_seconds": 0.0, "unknown": 4}
        path.write_text(json.dumps(content), encoding="utf-8")
    assert "known cost" not in pages(tmp_path / "r")["index.html"]


def test_a_paper_has_every_claim_and_every_record(atlas, folder):
    for paper in PAPERS:
        page = Page(atlas[f"{paper}.html"])
        assert all(page.ids[claim.id] == 1 for claim in claims().values() if claim.paper == paper)
    for item in SMOKE:
        record, text = read_recorded(folder / f"{file_name(item, 'smoke')}.json"), atlas[f"{item.split('/')[0]}.html"]
        rows = Page(text).rows
        assert all([*row.values()] in rows for row in record.rows)
        drawn = sum(len(panels) for panels in (record.panels or {}).values())
        assert text.count("<svg xmlns") == drawn  # there is one record a paper
        assert f"fedweave reproduce {item} --scale smoke --record results" in text
    assert "Curves were not recorded" in atlas["delta.html"]


def test_what_was_not_run_has_its_reason_and_cost(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "r")
    (tmp_path / "r" / "notes.toml").write_text(
        'unavailable = ["cinic10"]\n[costs]\n"fedacs/table1" = "an hour"\n"fedacs/table1/mnist" = "a day"\n'
        '[[open]]\nclaim = "fedaware/top-fashion-hybrid+"\ntried = "Two seeds."\nwould_decide = "Ten."\n'
    )
    contents = read_contents(tmp_path / "r")
    judged = {j.claim.item: j for j, _ in contents.judged if j.verdict == "not run" and j.claim.column != "tuned"}
    why = {item: contents.why_not_run(judged[item]) for item in ("fedacs/table1/mnist", "fedacs/table1/cinic10")}
    assert why["fedacs/table1/mnist"] == ("not run yet", "a day")
    assert why["fedacs/table1/cinic10"] == ("the data set cinic10 could not be had here", "an hour")
    tuned = next(j for j, _ in contents.judged if (j.claim.item, j.claim.column) == (SMOKE[2], "tuned"))
    assert contents.why_not_run(tuned)[0].startswith("Its run was without --tune.")
    made = pages(tmp_path / "r")
    assert "What was tried.</b> Two seeds. <b>What would decide it.</b> Ten." in made["fedaware.html"]
    assert "6ee4d0c996905fe93221de577967a372" in made["index.html"]


@pytest.mark.parametrize("text", ["unavailable = 3", "[[open]]\nclaim = 'x'", "x ="])
def test_notes_that_cannot_be_read_are_named(text, tmp_path):
    (tmp_path / "notes.toml").write_text(text)
    with pytest.raises(BadInput, match=r"notes\.toml.*cannot be read"):
        pages(tmp_path)


@REPOSITORY
def test_claims_that_are_not_confirmed_have_their_paragraph():
    contents = read_contents(ROOT / "results")
    written = [entry.claim for entry in contents.notes.open]
    assert set(written) <= set(claims())
    assert len(written) == len(set(written))
    needed = [j for j, _ in contents.judged if j.claim.primary and j.verdict in ("contradicted", "undecided")]
    assert all(j.claim.id in written for j in needed), "results/notes.toml says what was tried and what would decide it"
    items = [name for name in contents.notes.costs if not papers.select([name])]
    assert not items
    assert all(recipe(data) for data in contents.notes.unavailable)


def test_errata_name_what_shows_them():
    about = read_about()
    assert {*PAPERS} < {*about}
    for erratum in (erratum for paper in about.values() for erratum in paper.errata):
        if erratum.check.startswith("fedweave reproduce "):
            assert papers.select([erratum.check.split()[-1]])
        elif erratum.check.startswith("docs/"):
            assert not (ROOT / "docs").is_dir() or (ROOT / erratum.check).is_file()
        else:
            module, _, name = erratum.check.rpartition(".")
            assert (
                importlib.util.find_spec(erratum.check)
                if name.islower() and "_" not in name
                else hasattr(importlib.import_module(module), name)
            )


def test_pages_are_written_by_the_command_without_a_run(folder, tmp_path, monkeypatch, atlas):
    monkeypatch.setattr(papers, "reproduce", lambda *_: pytest.fail("began"))
    with pytest.raises(SystemExit, match="0"):
        app(["reproduce", "--page", str(tmp_path / "site"), "--record", str(folder)])
    assert {p.name: p.read_text(encoding="utf-8") for p in (tmp_path / "site").iterdir()} == atlas


def test_items_are_run_recorded_and_shown_in_one_command(tmp_path):
    written = ["--record", str(tmp_path / "r"), "--html", str(tmp_path / "item.html")]
    with pytest.raises(SystemExit, match="0"):
        app(["reproduce", "delta/fig3", "--quiet", *written, "--page", str(tmp_path / "site")])
    assert "<h1>delta/fig3, scale smoke</h1>" in (tmp_path / "item.html").read_text(encoding="utf-8")
    assert 'id="delta/fig3.smoke"' in (tmp_path / "site" / "delta.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["delta/fig3", "--page", "x"], "Give --record"),
        (["--random", "0"], "at least 1"),
        (["--random", "1", "--all"], "Leave out items"),
        (["--random", "1000"], r"recorded outcomes\."),
        (["--random", "1000", "--scale", "paper"], r"recorded outcomes at scale paper\."),
        (["--random", "1", "--tune"], "Leave out --tune"),
        (["--random", "1", "--html", "x"], "Leave out --tune"),
        (["--random", "1", "--accept-earlier-versions"], "Leave out --tune"),
        (["--random", "1", "--budget", "soon"], "must be a time"),
        ([], "Name the items"),
    ],
)
def test_what_does_not_go_together_is_refused(words, said, tmp_path, monkeypatch):
    from fedweave.cli.reproduce import reproduce

    monkeypatch.chdir(tmp_path)
    command, bound, _ = app["reproduce"].parse_args(words)
    assert command is reproduce
    with pytest.raises(BadInput, match=said):
        command(*bound.args, **bound.kwargs)


def random_items(folder, capfd, *more):
    with pytest.raises(SystemExit) as ended:
        app(["reproduce", "--random", "1", "--seed", "3", "--record", str(folder), "--json", "--quiet", *more])
    return ended.value.code, next(iter(json.loads(capfd.readouterr().out).items()))


def test_repeated_items_stop_with_their_budget_and_continue(folder, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path / "cache"))
    with monkeypatch.context() as patch:
        patch.setattr(reproduction, "time", SimpleNamespace(monotonic=lambda: 1e12))
        code, (_, found) = random_items(folder, capfd, "--budget", "1d", "--scale", "smoke")
    assert (code, found["agreement"]) == (0, "left")
    assert re.fullmatch(r"the budget is used up: 0 of \d+ runs are done, and kept", found["why"])
    assert random_items(folder, capfd)[1][1]["agreement"] == "to the bit"


def test_claims_belong_to_the_record_that_they_are_by(folder, tmp_path):
    """Two records of one item, of the same day and fidelity."""
    shutil.copytree(folder, tmp_path / "r")
    first = tmp_path / "r" / f"{file_name('latency/fig3', 'smoke')}.json"
    content = json.loads(first.read_text(encoding="utf-8")) | {"scale": "laptop"}
    for entry in content["claims"]:
        entry["seeds"] = 1000
    first.with_name(f"{file_name('latency/fig3', 'laptop')}.json").write_text(json.dumps(content), encoding="utf-8")
    contents = read_contents(tmp_path / "r")
    listed = {r.scale: contents.of_record(r) for r in contents.records if r.item == "latency/fig3"}
    assert listed["laptop"]
    assert not listed["smoke"]


def test_repeated_items_agree_to_the_bit_or_by_verdict(folder, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path / "cache"))
    single = tmp_path / "single"
    single.mkdir()
    name = f"{file_name('latency/fig3', 'smoke')}.json"
    content = json.loads((folder / name).read_text(encoding="utf-8"))

    def repeat(change=lambda content: None):
        changed = json.loads(json.dumps(content))
        change(changed)
        (single / name).write_text(json.dumps(changed), encoding="utf-8")
        return random_items(single, capfd)

    code, (item, found) = repeat()
    assert (code, item, found["agreement"]) == (0, "latency/fig3, smoke", "to the bit")
    assert not list((tmp_path / "cache").glob("*")), "what was repeated is not kept"

    def last_bit(content):
        arm = next(iter(next(iter(content["measures"]["paper"].values())).values()))
        arm[0] *= 1 + 2**-52

    code, (_, found) = repeat(last_bit)
    assert (code, found["agreement"]) == (1, "different")

    def elsewhere(content):
        last_bit(content)
        content["origins"][0]["processor"]["name"] = "another"

    code, (_, found) = repeat(elsewhere)
    assert (code, found["agreement"]) == (0, "verdicts")
    assert found["why"].startswith("another processor; paper, ")

    def other_verdict(content):
        elsewhere(content)
        claim = content["claims"][0]
        claim |= {"p_right": 1e-9, "p_wrong": 1.0, "seeds": 10}

    code, (_, found) = repeat(other_verdict)
    assert (code, found["agreement"]) == (1, "different")
    assert content["claims"][0]["id"] in found["why"]


@REPOSITORY
def test_the_archive_has_all_of_it_and_the_same_bytes_every_time():
    content = build_archive(ROOT)
    assert content == build_archive(ROOT)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        files = {m.name.partition("/")[2]: tar.extractfile(m).read() for m in tar}
        assert {(m.mtime, m.uid, m.mode) for m in tar} == {(0, 0, 0o644)}
    manifest = json.loads(files.pop("MANIFEST.json"))
    assert manifest["version"] == fedweave.__version__
    assert manifest["sha256"] == {name: sha256(file).hexdigest() for name, file in files.items()}
    for name in (
        "docs/atlas/index.html",
        "src/fedweave/papers/ledger/frozen.json",
        "results/notes.toml",
        "CITATION.cff",
    ):
        assert files[name] == (ROOT / name).read_bytes()
    listed = ["git", "-C", str(ROOT), "ls-files", "src/fedweave"]
    assert {*subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()} <= files.keys()
    assert not [name for name in files if "__pycache__" in name]


@REPOSITORY
def test_the_citation_has_the_version_and_the_papers():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {fedweave.__version__}\n" in text
    about = read_about()
    assert all(about[paper].title in text for paper in PAPERS)
