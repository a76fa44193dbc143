"""The page of results says what the recorded files say, and nothing else."""

from pathlib import Path

import pytest

from fedweave import papers
from fedweave.papers.common.results_page import markdown

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.skipif(not (REPOSITORY / "docs").is_dir(), reason="the page is not part of an installed package")
def test_the_page_is_what_make_results_writes():
    assert (REPOSITORY / "docs" / "results.md").read_text(encoding="utf-8") == markdown(REPOSITORY / "results")


def test_without_records_nothing_is_claimed(tmp_path):
    page = markdown(tmp_path)
    assert "confirmed**" not in page
    assert "contradicted**" not in page
    assert page.count("**not run**") == sum(entry["primary"] for entry in papers.list_claims(tmp_path))
