"""The reference says of every field and key what it is, and shows nothing that is internal."""

import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest

import fedweave as fw
from fedweave.core.options import options_of
from fedweave.report import compare_rows
from report.fabricate import tiny

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="an installed package has no pages")


@pytest.fixture(scope="module")
def pages():
    return runpy.run_path(str(ROOT / "tools" / "reference.py"))["pages"]()


def entry(page, name):
    return re.search(rf"^### {name}$(.*?)(?=^##)", page, re.MULTILINE | re.DOTALL)[1]


def test_every_field_of_an_experiment_has_its_type_and_sentence(pages):
    text = entry(pages["python.md"], "Experiment")
    rows = {m[1]: (m[2], m[3]) for m in re.finditer(r"^\| `(\w+)` \| `(.+?)` \| (.+?) \|", text, re.MULTILINE)}
    assert list(rows) == [field.name for field in fields(fw.Experiment)]
    for name, option in options_of(fw.Experiment).items():
        assert option.help in rows[name][1]
    assert rows["epochs"][0] == r"float \| None"
    heading = "## The options of an experiment"
    assert heading in pages["commands.md"]
    assert f"(commands.md#{heading[3:].lower().replace(' ', '-')})" in text


def test_internals_are_not_in_the_reference(pages):
    text = entry(pages["python.md"], "Experiment") + entry(pages["python.md"], "Method")
    assert "- `.lr_at(" in text
    assert not re.search(r"- `\.(foreign|widened|asking|paced_method|rules)\b", text)


def test_every_key_of_a_summary_is_explained(pages):
    text = entry(pages["python.md"], "Comparison")
    (row,) = compare_rows([tiny("fedavg", [0.1, 0.9])])
    assert not [key for key in row if not key.endswith("_std") and f"`{key}`" not in text]
