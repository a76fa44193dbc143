"""What surrounds the code: changelog, templates of issues, the page on an index."""

import re
import runpy
from pathlib import Path

import pytest
import yaml

import fedweave

ROOT = Path(__file__).parents[1]
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]  # of keepachangelog.com, in this order
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))  # not in the sdist


def test_the_newest_version_of_the_changelog_is_this_one():
    versions = re.findall(r"^## (\S+) \((?:unreleased|\d{4}-\d\d-\d\d)\)$", CHANGELOG, re.MULTILINE)
    assert versions[0] == fedweave.__version__
    assert len(versions) == CHANGELOG.count("\n## ")
    numbers = [tuple(map(int, version.split("."))) for version in versions]
    assert numbers == sorted(set(numbers), reverse=True)


def test_every_entry_of_the_changelog_is_of_one_of_six_kinds():
    assert not re.search(r"^#{4,}", CHANGELOG, re.MULTILINE)
    for version in CHANGELOG.split("\n## ")[1:]:
        before, *sections = version.split("\n### ")
        assert "\n- " not in before, "an entry without a kind"
        kinds = [section.splitlines()[0] for section in sections]
        assert kinds == [kind for kind in KINDS if kind in kinds], "one kind twice, unknown or out of order"
        assert all("\n- " in section for section in sections), "a kind without an entry"


def test_the_links_of_the_changelog_exist():
    links = re.findall(r"\]\((?!https:)([^)]+)\)", CHANGELOG)
    assert links
    assert not [link for link in links if not (ROOT / link).is_file()]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_is_a_form_by_githubs_rules(path):
    """Required keys, kinds of fields and unique ids and labels, as GitHub's syntax for issue forms has them."""
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= form.keys() <= {"name", "description", "body", "labels", "title"}
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert fields, "text alone is no form"
    assert {part["type"] for part in fields} <= {"input", "textarea", "dropdown", "checkboxes"}
    for key in ([part["id"] for part in fields], [part["attributes"]["label"] for part in fields]):
        assert len(set(key)) == len(key)
    assert all(re.fullmatch(r"[\w-]+", part["id"]) for part in fields)
    assert all(part.keys() <= {"type", "id", "attributes", "validations"} for part in form["body"])
    assert any(part.get("validations", {}).get("required") is True for part in fields)


@pytest.mark.skipif(not TEMPLATES, reason="an sdist has no .github")
def test_who_reports_an_error_is_asked_for_the_doctor():
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text(encoding="utf-8"))
    (doctor,) = [part for part in form["body"] if "fedweave doctor --json" in part["attributes"].get("label", "")]
    assert doctor["validations"]["required"]


def test_links_that_an_index_cannot_follow_become_absolute_or_text():
    page = runpy.run_path(str(ROOT / "tools/index_page.py"))["index_page"]
    text = "A\n\n![p](docs/p.png)\n\n[b](docs/b.md#c), [d](https://e.org), [f](#f)\n"
    assert page(text, None, "1.2") == "A\n\nb, [d](https://e.org), [f](#f)\n"
    there = "https://h.org/us/it"
    absolute = f"![p]({there}/raw/v1.2/docs/p.png)\n\n[b]({there}/blob/v1.2/docs/b.md#c)"
    assert page(text, there, "1.2") == f"A\n\n{absolute}, [d](https://e.org), [f](#f)\n"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```.*?^```$", readme, re.MULTILINE | re.DOTALL):
        assert block in page(readme, None, "1.2"), "code stays as it is"
