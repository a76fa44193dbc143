"""docs/choosing.md says what the recorded files say: directions only where the statistics allow them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedweave.core.settings import BadInput
from fedweave.papers.common.choosing import answer_all
from fedweave.papers.common.choosing_page import CASES, combinations, markdown, question
from fedweave.papers.common.recorded import read_recorded
from fedweave.statistics import benjamini_hochberg, paired_difference

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "results"
needs_results = pytest.mark.skipif(not RESULTS.is_dir(), reason="records are not part of an installed package")


@pytest.mark.skipif(not (REPOSITORY / "docs").is_dir(), reason="the page is not part of an installed package")
def test_the_page_is_what_make_results_writes():
    assert (REPOSITORY / "docs" / "choosing.md").read_text(encoding="utf-8") == markdown(RESULTS)


def test_without_records_nothing_is_said(tmp_path):
    page = markdown(tmp_path)
    assert "better**" not in page
    assert page.count("Not run yet") == sum(map(len, CASES.values())) + 1


def changed(folder, change):
    """Return the page of the demo's record alone, after a change of its content."""
    name = "beyond-demo.laptop.json"
    content = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    change(content)
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return markdown(folder)


def row(page, method):
    (line,) = (line for line in page.splitlines() if line.startswith(f"| `{method}` |"))
    return line.split(" | ")


@needs_results
def test_a_changed_record_changes_the_sentence(tmp_path):
    """FedBuff's lead in the demo: as recorded, with signs that alternate, and turned round."""

    def accuracies(content):
        return content["measures"]["paper"]["final accuracy"]

    def noisy(content):
        plain = accuracies(content)["fedavg"]
        accuracies(content)["fedbuff"] = [v + 0.1 * (-1) ** i for i, v in enumerate(plain)]

    def reverse(content):
        accuracies(content)["fedbuff"] = [v - 0.01 * (1 + i % 2) for i, v in enumerate(accuracies(content)["fedavg"])]

    assert row(changed(tmp_path, lambda content: None), "fedbuff")[1].startswith("**better**: +")
    page = changed(tmp_path, noisy)
    assert row(page, "fedbuff")[1].startswith("no difference shown: ")
    assert "detectable" in row(page, "fedbuff")[1]
    assert row(changed(tmp_path, reverse), "fedbuff")[1].startswith("worse: -1.50 points")


@needs_results
def test_where_nothing_is_better_plain_fedavg_is_named(tmp_path):
    def all_equal(content):
        values = content["measures"]["paper"]["final accuracy"]
        content["measures"]["paper"]["final accuracy"] = dict.fromkeys(values, values["fedavg"])

    page = changed(tmp_path, all_equal)
    assert "- `beyond/demo`, final accuracy. Worse: none.\n" in page
    assert (
        "| none shown | no difference could be shown in favour of another method | 0 better, 0 worse, 3 not shown |"
        in page
    )
    assert "| **plain FedAvg** | every other method is worse | 0 better, 3 worse, 0 not shown |" in page  # in MB
    assert row(page, "feddd")[1] == "the same in every run"


@needs_results
@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1e-12, "**better**: below 1e-09 of fedavg's value (rounding)"),
        (1e12, "worse: fedavg's value is below 1e-09 of it (rounding)"),
        (1e6, "worse: 1e+06× (1e+06× to 1e+06×)"),
    ],
)
def test_a_ratio_to_rounding_errors_says_so(factor, said, tmp_path):
    def change(content):
        values = content["measures"]["paper"]["seconds to the target"]
        values["fedbuff"] = [v * factor for v in values["fedavg"]]

    assert row(changed(tmp_path, change), "fedbuff")[3] == said


@needs_results
def test_a_row_at_a_glance_stands_for_itself():
    page = markdown(RESULTS)
    glance = page.split("## At a glance")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in glance.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == sum(len(measures) for items in CASES.values() for measures in items.values())
    assert {r[0] for r in rows} == {
        f"{case.split(':')[0]} (`{item}`)" for case, items in CASES.items() for item in items
    }


@needs_results
def test_a_run_that_never_arrives_has_no_factor(tmp_path):
    line = row(changed(tmp_path, lambda content: None), "fedacs")
    assert line[3] == "worse: never arrives against always arrives"

    def once(content):
        (cells,) = (cells for cells in content["rows"] if cells["method"] == "feddd")
        cells["seconds to the target"] = "9 of 10 seeds, the first 52"

    line = row(changed(tmp_path, once), "feddd")
    assert line[3] == "**better**: 0.651× (0.54× to 0.786×), arrives in 9 of 10 runs against always arrives"


@needs_results
def test_numbers_by_hand(tmp_path):
    """Differences of accuracies, ratios of seconds, corrected over everything that is asked."""
    shutil.copy(RESULTS / "beyond-demo.laptop.json", tmp_path)
    record = read_recorded(tmp_path / "beyond-demo.laptop.json")
    asked = [question("beyond/demo", m) for m in ("final accuracy", "seconds to the target")]
    found = answer_all(asked, {"beyond/demo": record})
    values = record.measures["paper"]
    p = {}
    for q, change in zip(asked, (np.asarray, np.log), strict=True):
        for answer in found[q]:
            d = paired_difference(*(change(values[q.measure][arm]) for arm in (answer.arm, "fedavg")))
            assert answer.difference == d
            p[q, answer.arm] = min(1.0, 2 * min(d.p_above(), d.p_below()))
    corrected = dict(zip(p, benjamini_hochberg(list(p.values())), strict=True))
    assert {(q, a.arm): a.p for q in asked for a in found[q]} == pytest.approx(corrected)
    assert [a.arm for a in found[asked[0]]] == ["fedbuff", "feddd", "fedacs"]  # best first
    assert [a.arm for a in found[asked[1]]] == ["fedbuff", "feddd", "fedacs"]


@needs_results
def test_runs_without_a_number_are_not_left_out(tmp_path):
    with pytest.raises(BadInput, match=r"beyond/demo: some runs of feddd have no 'MB'\."):
        changed(tmp_path, lambda content: content["measures"]["paper"]["MB"]["feddd"].__setitem__(3, None))


def test_combinations_are_compared_with_what_they_are_made_of():
    assert {q.arms[0] for q in combinations()} == {"feddd_acs", "latency_dropout", "fedaware_acs", "fedbuff_topk"}
    assert all(q.reference not in q.arms for q in combinations())
