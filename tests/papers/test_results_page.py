"""The page of results says what the recorded files say, and nothing else."""

from pathlib import Path

import pytest

from fedweave import papers
from fedweave.papers.common.results_page import OUTCOMES, markdown, with_counts

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.skipif(not (REPOSITORY / "docs").is_dir(), reason="the page is not part of an installed package")
def test_the_page_is_what_make_results_writes():
    assert (REPOSITORY / "docs" / "results.md").read_text(encoding="utf-8") == markdown(REPOSITORY / "results")


def test_claims_of_the_papers_and_questions_of_ours_are_counted_apart(tmp_path):
    ours = [entry for entry in papers.list_claims(tmp_path) if entry["beyond"]]
    theirs = [entry for entry in papers.list_claims(tmp_path) if not entry["beyond"]]
    page = markdown(tmp_path)
    assert f"{len(theirs):,} claims of the papers, 0 of them run: 0 confirmed" in page
    assert f"{len(ours):,} questions of our own, 0 of them run: 0 confirmed" in page
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| [")]
    assert sum(int(row[1]) for row in rows if "(ours)" in row[0]) == len(ours)
    assert sum(int(row[1]) for row in rows if "(ours)" not in row[0]) == len(theirs)


@pytest.mark.skipif(not (REPOSITORY / "docs").is_dir(), reason="an installed package has no README")
def test_the_readme_says_how_many_claims_of_the_papers_were_run():
    theirs = [entry["verdict"] for entry in papers.list_claims(REPOSITORY / "results") if not entry["beyond"]]
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    said = f"So far {len(theirs) - theirs.count('not run')} of the {len(theirs)} have been run: "
    said += ", ".join(f"{theirs.count(outcome)} {outcome}" for outcome in OUTCOMES)
    assert said in readme, "run `make results`"
    assert with_counts(readme, REPOSITORY / "results") == readme


def test_counts_are_written_between_their_marks_alone(tmp_path):
    made = with_counts("a <!-- counts -->old<!-- end of counts --> b", tmp_path)
    assert made.startswith("a <!-- counts -->So far 0 of the ")
    assert made.endswith(": 0 confirmed, 0 contradicted, 0 undecided.<!-- end of counts --> b")


def test_without_records_nothing_is_claimed(tmp_path):
    page = markdown(tmp_path)
    assert "confirmed**" not in page
    assert "contradicted**" not in page
    assert page.count("**not run**") == sum(entry["primary"] for entry in papers.list_claims(tmp_path))
