"""The command line starts at once: commands are loaded when they are used, and what is listed agrees with what is."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module

import pytest

from fedweave import models
from fedweave.cli import completion, listing, root
from fedweave.core import names
from fedweave.data import datasets, partition
from fedweave.papers.common.ledger import claims
from fedweave.runs.method_names import method_names
from fedweave.system import names as systems
from fedweave.tasks import names as tasks

HEAVY = {"numpy", "pydantic", "scipy", "matplotlib", "torch"}


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["list"], ["doctor"], ["doctor", "--help"]])
def test_what_needs_no_library_loads_none(words):
    code = (
        f"import sys, json; from fedweave import cli; sys.argv = ['fedweave', *{words}]\n"
        "try: cli.main()\n"
        f"except SystemExit as e: print(json.dumps([e.code, sorted({HEAVY} & set(sys.modules))]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert json.loads(done.stderr.splitlines()[-1]) == [0, []]
    assert done.stdout


@pytest.mark.parametrize("name", root.COMMANDS)
def test_help_says_of_a_command_what_its_docstring_says(name):
    command = root.COMMANDS[name]
    module, _, attribute = command.place.partition(":")
    found = getattr(import_module(f"fedweave.cli.{module}"), attribute)
    about = found.__doc__ if inspect.isfunction(found) else found.help
    assert about.split("\n")[0] == command.help
    examples = command.examples or (found.help_epilogue,)
    assert all(f"fedweave {name}" in example for example in examples)


def test_a_broken_library_is_told_with_the_way_to_mend_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedweave", "run", "fedavg"])
    monkeypatch.setattr(root.app._commands["run"], "_resolved", None)
    monkeypatch.delitem(sys.modules, "fedweave.cli.app")
    monkeypatch.setitem(sys.modules, "fedweave.store.export", None)  # as if its file were gone
    with pytest.raises(ImportError):  # our own module: a defect of fedweave, not of the installation
        root._parse(sys.argv[1:])
    monkeypatch.delitem(sys.modules, "fedweave.store.export")
    monkeypatch.delitem(sys.modules, "fedweave.cli.output", raising=False)
    monkeypatch.delitem(sys.modules, "rich.console", raising=False)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(SystemExit) as ended:
        root.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: fedweave run needs rich.console, which is missing or damaged. `fedweave doctor`")


def test_the_names_that_load_nothing_are_those_that_exist():
    assert sorted(names.methods()) == sorted(method_names())
    assert set(names.COMMON_METHODS) <= set(names.methods())
    assert set(names.COMMON_MODELS) <= set(models.names())
    assert list(names.DATA) == datasets.names()
    assert [form.partition(":")[0] for form in names.PARTITIONS] == list(partition.FORMS)
    assert all(any(form in ways.split(" or ") for ways in partition.forms()) for form in names.PARTITIONS)
    assert set(names.SYSTEMS) == set(systems.info())
    assert list(names.TASKS) == list(tasks.TASKS)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_short_list_counts_every_kind_and_fits(width):
    text = listing.short_list(width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 24, "more than a terminal has"
    counts = {found[1]: int(found[2]) for line in lines if (found := re.match(r"(\w+) +(\d+) ", line))}
    assert counts == {
        "methods": len(method_names()), "data": len(datasets.names()), "models": len(models.names()),
        "partitions": len(partition.FORMS), "systems": len(systems.info()), "tasks": len(tasks.TASKS),
        "papers": 6, "claims": len(claims()),
    }  # fmt: skip
    assert counts.keys() == {*listing.KINDS, "claims"}


def complete(*words):
    """Return what a shell would be offered for the last word, before it filters by what was typed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        said = []
        patch.setattr("builtins.print", lambda *lines, **_: said.extend(lines))
        root.app(["__complete", *words], result_action="return_value")
    return [line.split("\t")[0] for line in said if "\x1f" not in line]


def test_names_are_completed_where_they_belong():
    assert set(complete("run", "fed")) == set(method_names())
    assert set(complete("compare", "fedavg", "fed")) >= set(method_names())
    assert set(complete("run", "fedavg", "--data", "")) >= set(datasets.names())
    assert set(complete("run", "fedavg", "--model", "")) >= set(models.names())
    assert "dirichlet" in complete("run", "fedavg", "--partition", "")
    assert set(complete("run", "fedavg", "--task", "")) >= set(tasks.TASKS)
    worlds = complete("run", "fedavg", "--system", "")
    assert set(worlds) == set(systems.SYSTEMS)


def test_completed_names_are_taken():
    for form in completion._known("systems"):
        systems.parse(form)
    for form in completion._known("partitions"):
        assert form in partition.FORMS


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_every_shell_knows_commands_and_options(shell, capsys):
    completion.completion(shell)
    script = capsys.readouterr().out
    assert all(name in script for name in root.COMMANDS)
    assert "per-round" in script
    assert "verbose" in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_script(capsys, tmp_path):
    completion.completion("bash")
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "fedweave").write_text(f'#!/bin/sh\nexec {sys.executable} -m fedweave "$@"\n')
    (tmp_path / "fedweave").chmod(0o755)
    complete = """
        complete_words() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            $(complete -p fedweave | sed 's/.*-F \\([^ ]*\\) .*/\\1/') fedweave "${!#}" ""
            echo "${COMPREPLY[@]}"
        }
        source ./script; complete_words fedweave com; complete_words fedweave run fedprac
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", complete], cwd=tmp_path, capture_output=True, text=True, env=environment, check=True
    )
    commands, methods = (line.split() for line in done.stdout.splitlines())
    assert set(commands) == {"compare", "completion"}
    assert set(methods) == {name for name in method_names() if name.startswith("fedprac")}
