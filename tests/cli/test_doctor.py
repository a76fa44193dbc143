"""``fedweave doctor`` tells what is there and what is missing, and loads nothing that may be broken."""

import json
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import fedweave
from fedweave.cli import data_files, doctor, packages
from fedweave.core.errors import BadInput
from fedweave.data import data_root, datasets
from fedweave.papers.common.cache import cache_folder

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.fixture(autouse=True)
def fresh():
    packages.installed.cache_clear()
    yield
    packages.installed.cache_clear()


@pytest.fixture
def told(capsys):
    """Return the exit code and what ``fedweave doctor --json`` prints."""

    def call():
        try:
            doctor.command(json=True)
            code = 0
        except SystemExit as e:
            code = e.code
        return code, json.loads(capsys.readouterr().out)

    return call


def pretend(monkeypatch, versions):
    """Let packages have these versions, or be missing where it is None; the others are as they are."""
    real = metadata.version

    def version(name):
        if versions.get(name, "") is None:
            raise metadata.PackageNotFoundError(name)
        return versions.get(name) or real(name)

    monkeypatch.setattr(packages, "version", version)


def test_a_whole_installation_can_train(told):
    code, said = told()
    assert (code, said["ready"]) == (0, True)
    assert not [finding for finding in said["findings"] if finding["stops"]]
    assert said["versions"]["fedweave"] == fedweave.__version__
    assert said["versions"]["torch"] == metadata.version("torch")
    assert said["machine"]["usable_cores"] >= 1
    assert said["extras"]["torch"]["installed"]


def test_every_extra_has_a_purpose_and_the_packages_of_the_project_file(told):
    assert PROJECT["optional-dependencies"].keys() == packages.EXTRAS.keys()
    _, said = told()
    assert list(said["extras"]) == list(packages.EXTRAS)
    for extra in ("torch", "data", "flower", "ray", "private"):
        wanted = {packages._parse(line).name for line in PROJECT["optional-dependencies"][extra]}
        assert said["extras"][extra]["packages"].keys() == wanted
    assert said["extras"]["papers"]["packages"].keys() >= {"torch", "mlxtend", "joblib"}, "with those it includes"


def test_requirements_are_read_with_their_bounds_and_extras():
    assert packages._parse("numpy<3,>=1.26") == ("numpy", (), "<3,>=1.26", "")
    assert packages._parse("fedweave[torch, data]; extra == 'papers'") == ("fedweave", ("torch", "data"), "", "papers")
    assert packages._parse('flwr (>=1.41) ; python_version > "3" and extra == "flower"')[2:] == (">=1.41", "flower")
    lines = [packages._parse(t) for t in ("pip>=1; extra == 'a'", "fedweave[a]; extra == 'b'", "numpy; extra == 'b'")]
    assert list(packages.packages(lines, "b")) == ["pip", "numpy"], "an extra that includes another"


@pytest.mark.parametrize(
    ("number", "rules", "fits"),
    [
        ("2.6.0", ">=2.6", True), ("2.6", ">=2.6.0", True), ("2.13.0+cpu", ">=2.6", True), ("2.5.9", ">=2.6", False),
        ("3.0rc1", "<3", False), ("1.42.7", ">=1.41,<1.43", True), ("1.43", ">=1.41,<1.43", False),
        ("10", ">=9.5", True), ("1.0", "!=1.0", True), ("1.0", "", True),
    ],
)  # fmt: skip
def test_versions_are_compared_as_numbers(number, rules, fits, monkeypatch):
    pretend(monkeypatch, {"numpy": number})
    assert (not packages.installed("numpy", rules).problem) is fits


def test_without_torch_nothing_trains_and_the_way_to_get_it_is_told(told, monkeypatch):
    pretend(monkeypatch, {"torch": None})
    code, said = told()
    assert (code, said["ready"]) == (1, False)
    assert doctor._extra(said["extras"]["torch"]) == "missing: training, lacks torch; pip install 'fedweave[torch]'"
    (finding,) = said["findings"]
    assert finding["what"] == "The extra torch needs torch>=2.6, but it is not installed"
    assert finding["way"] == "Mend it with: pip install 'fedweave[torch]'"
    assert said["extras"]["fast"]["missing"] == ["torch"], "an extra that includes it"


def test_an_optional_package_that_is_too_old_is_a_warning_and_a_needed_one_an_error(told, monkeypatch):
    pretend(monkeypatch, {"numba": "0.50.0", "ray": None})
    code, said = told()
    assert (code, said["ready"]) == (0, True), "ray is an extra that nobody has to have"
    (finding,) = said["findings"]
    assert finding["what"] == "The extra fast needs numba>=0.62, but it is 0.50.0 here"
    assert finding["way"] == "Mend it with: pip install 'numba>=0.62'"
    assert (said["extras"]["ray"]["installed"], said["extras"]["ray"]["missing"]) == (False, ["ray"])
    packages.installed.cache_clear()
    pretend(monkeypatch, {"numpy": "1.20"})
    code, said = told()
    assert (code, [finding["stops"] for finding in said["findings"]]) == (1, [True])


def test_a_package_whose_module_is_gone_is_damaged(told, monkeypatch):
    real = packages.find_spec
    monkeypatch.setattr(packages, "find_spec", lambda module: None if module == "scipy" else real(module))
    code, said = told()
    assert code == 1
    assert "damaged: its module scipy is missing" in said["findings"][0]["what"]
    assert "--force-reinstall 'scipy" in said["findings"][0]["way"]


def test_a_source_folder_that_is_not_installed_is_told(told, monkeypatch):
    pretend(monkeypatch, {"fedweave": None, "torch": None})

    def nothing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(packages, "requires", nothing)
    code, said = told()
    assert "not installed as a package" in said["findings"][0]["what"]
    assert (code, said["findings"][1]["what"]) == (1, "The extra torch needs torch, but it is not installed")
    names = [packages._parse(line).name for line in PROJECT["dependencies"]]
    assert packages.BARE[""].split() == names
    assert packages.BARE["torch"].split() == [
        packages._parse(line).name for line in PROJECT["optional-dependencies"]["torch"]
    ]
    monkeypatch.undo()
    packages.installed.cache_clear()
    pretend(monkeypatch, {"fedweave": "0.0.1"})
    assert f"what runs is {fedweave.__version__}" in told()[1]["findings"][0]["what"]


def test_a_temporary_folder_that_cannot_be_written_or_is_full_is_told(told, monkeypatch):
    usage = doctor.shutil.disk_usage("/")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage._replace(free=2**20))
    code, said = told()
    assert (code, "has 1 MB left" in said["findings"][0]["what"]) == (0, True)

    def refuse(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    code, said = told()
    assert (code, said["temporary"]["folder"]) == (1, None)
    assert "TMPDIR" in said["findings"][0]["way"]


@pytest.mark.parametrize(
    ("built", "count", "answer"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None", 1, ("cpu", "built for CPUs only")),
        ("cuda = '12.8'\n", None, ("cpu", "there is no driver")),
        ("cuda = '12.8'\n", 0, ("cpu", "sees no CUDA device")),
        ("cuda = '12.8'\n", 2, ("cuda", "2 CUDA devices")),
    ],
)
def test_the_device_is_told_by_torchs_files_and_the_driver(built, count, answer, monkeypatch, tmp_path):
    (tmp_path / "version.py").write_text(f"__version__ = 'x'\n{built}")
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr(doctor, "find_spec", lambda _: spec)
    monkeypatch.setattr(doctor, "cuda_devices", lambda: count)
    name, why = doctor.device()
    assert name == answer[0]
    assert answer[1] in why


def test_the_device_is_the_one_that_training_would_choose():
    from fedweave.local.torch.device import choose_device

    assert doctor.device()[0] == choose_device("auto")[0]


def test_memory_is_known_and_a_containers_limit_counts(monkeypatch, tmp_path):
    total, free = doctor.memory()
    assert 0 < free <= total
    (tmp_path / "max").write_text("1048576\n")
    monkeypatch.setattr(doctor, "LIMITS", (str(tmp_path / "none"), str(tmp_path / "max")))
    assert doctor.memory() == (2**20, 2**20)
    (tmp_path / "max").write_text("max\n")
    assert doctor.memory()[0] == total


@pytest.mark.parametrize("name", [name for name, need in data_files.NEEDS.items() if need.files])
def test_a_data_set_lacks_files_as_long_as_its_loader_does(name, tmp_path, monkeypatch):
    """Empty files pass for those that are there: the loader then refuses their content, but no longer misses them."""
    monkeypatch.setenv("FEDWEAVE_OFFLINE", "1")
    for group in data_files.NEEDS[name].files:
        assert data_files.missing(name, tmp_path, offline=True)
        with pytest.raises(BadInput, match="is missing"):
            locate_all(name, tmp_path, monkeypatch)
        place = tmp_path / group[-1]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    assert data_files.missing(name, tmp_path, offline=True) == ""
    assert locate_all(name, tmp_path, monkeypatch) == len(data_files.NEEDS[name].files)


def locate_all(name, root, monkeypatch):
    """Ask for every file that a loader would read, and read nothing; return how many there were."""
    from fedweave.data import leaf, shakespeare
    from fedweave.data.fetch import locate

    found, empty = [], np.zeros((0, 1, 1), np.uint8)

    def look(data, places, offer, base):
        found.append(locate(data, dict.fromkeys(places, ""), offer, base))
        return found[-1]

    for module in (datasets, leaf, shakespeare):
        monkeypatch.setattr(module, "locate", look)
    monkeypatch.setattr(datasets, "read_idx", lambda _: empty)
    monkeypatch.setattr(datasets, "_grey", lambda *_: (empty[:, None], empty[:, 0, 0], None))
    monkeypatch.setattr(np, "fromfile", lambda *_: np.zeros(3073, np.uint8))
    monkeypatch.setattr(datasets, "list_images", lambda *_: ([], empty[:, 0, 0]))
    monkeypatch.setattr(datasets, "read_images", lambda *_: empty)
    monkeypatch.setattr(leaf, "read_users", lambda _: leaf.Users([], [], [], []))
    try:
        datasets.DATASETS[name](root)
    except Exception as e:  # what is empty cannot be used
        if "is missing" in str(e):
            raise
    return len(found)


def test_data_sets_and_their_sizes_are_those_of_the_list():
    assert list(data_files.NEEDS) == datasets.names()
    for name, about in datasets.info().items():
        need = data_files.NEEDS[name]
        assert bool(need.size) == ("fetched" in about)
        assert not need.size or f"({need.size}, fetched)" in about
        assert bool(need.how) == ("LEAF" in about and "prepared" in about)


@pytest.mark.parametrize("given", [None, "~/elsewhere"])
def test_folders_are_those_that_are_used(given, told, monkeypatch):
    for variable in ("FEDWEAVE_DATA", "FEDWEAVE_CACHE"):
        monkeypatch.setenv(variable, given) if given else monkeypatch.delenv(variable, raising=False)
    _, said = told()
    assert said["data"]["folder"] == str(data_root())
    assert said["cache"]["runs"] == str(cache_folder())


def test_what_a_data_set_lacks_comes_with_the_way_to_get_it(monkeypatch, tmp_path, told):
    monkeypatch.setenv("FEDWEAVE_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr(data_files, "find_spec", lambda _: None)
    _, said = told()
    sets = said["data"]["sets"]
    assert (said["data"]["exists"], said["data"]["given_by"]) == (False, "FEDWEAVE_DATA")
    assert sets["digits"] == sets["mnist5k"] == "pip install 'fedweave[data]'"
    assert sets["mnist"] == "downloaded at the first use, 12 MB"
    assert sets["cinic10"] == "pip install 'fedweave[data]'; downloaded at the first use, 690 MB"
    assert "LEAF" in sets["femnist"]
    assert sets["synthetic"] == "ready"
    monkeypatch.setenv("FEDWEAVE_OFFLINE", "1")
    assert "FEDWEAVE_OFFLINE" in told()[1]["data"]["sets"]["mnist"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_page_fits_the_terminal_and_names_everything(width, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FEDWEAVE_DATA", str(tmp_path))
    doctor.command()
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[-1] == "Training is possible."
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= width
    words = said.out.split()
    assert {*packages.EXTRAS, "device", "memory", "temporary"} <= set(words)
    assert all(name in said.out for name in data_files.NEEDS)
