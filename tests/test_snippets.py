"""Every block of Python and every command on a page runs, in order, in one folder; what does not run says why.

Comments before a block, which readers do not see:

- ``<!-- not run: REASON -->``: it needs something that is not here, such as a fleet.
- ``<!-- file: NAME -->``: it is this file, which later blocks use.
- ``<!-- size: kept -->``: its rounds and seeds are not made fewer.

``<!-- commands not run: REASON -->`` holds for all commands of its page.
"""

import os
import re
import shlex
import signal
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from fedweave import cli
from fedweave.core import plugins
from smaller import FEWER, smaller

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>not run|file|size): (?P<value>[^\n]+) -->\n\s*)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
NO_COMMANDS = re.compile(r"^<!-- commands not run: (.+) -->$", re.MULTILINE)
COMMANDS, OTHERS = ("", "bash"), ("toml", "ini", "nginx", "text")
ELSEWHERE = {  # programs that are not ours, and why they are not started
    "make": "installs, or is this suite",
    "pip": "installs",
    "source": "for a shell",
    "tensorboard": "a server",
    "python": "a script with a test of its own, or a benchmark",
}


class Block(NamedTuple):
    """A fenced block of a page, and what the comment before it says."""

    line: int
    language: str
    code: str
    mark: str
    value: str


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page."""
    nothing = NO_COMMANDS.search(text)
    for found in BLOCK.finditer(text):
        code = re.sub(rf"(?m)^ {{{len(found['indent'])}}}", "", found["code"])
        mark, value = found["mark"] or "", found["value"] or ""
        if nothing and found["language"] in COMMANDS:
            mark, value = "not run", nothing[1]
        yield Block(text[: found.start("indent")].count("\n") + 1, found["language"], code, mark, value)


def commands(code: str) -> list[list[str]]:
    """Return the commands of a block as words; what is a comment to a shell is left out."""
    lines = re.sub(r"\\\n\s*", "", code).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def fewer(words: list[str]) -> list[str]:
    """Return a command with few rounds and seeds, and a reproduction at the smallest scale."""
    if "--scale" in words:
        words[words.index("--scale") + 1] = "smoke"
    trains = words[0] in ("run", "compare", "sweep")
    for option in ("rounds", "seeds"):
        count = str(FEWER[option] + (words[0] == "resume"))
        if f"--{option}" in words:
            words[words.index(f"--{option}") + 1] = count
        elif trains and option == "rounds" and not any(word.endswith(".toml") for word in words):
            words += ["--rounds", count]
    return words


class Page:
    """Runs the blocks of a page and counts what did not run, by reason."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.monkeypatch, self.names, self.ran, self.not_run = monkeypatch, {"__name__": "page"}, 0, Counter[str]()

    def run(self, block: Block, where: str) -> None:
        if block.mark == "not run":
            self.not_run[block.value] += 1
        elif block.mark == "file":
            Path(block.value).write_text(block.code)
        elif block.language == "python":
            code = block.code if block.mark == "size" else smaller(block.code)
            exec(compile("\n" * block.line + code, where, "exec"), self.names)
            self.ran += 1
        elif block.language in COMMANDS:
            for words in commands(block.code):
                self.command(words, block.mark == "size")
        elif block.language == "toml":
            tomllib.loads(block.code)
        else:
            assert block.language in OTHERS, f"{where}: a block of {block.language!r} is neither run nor known"

    def command(self, words: list[str], whole: bool) -> None:
        if words[0] in ELSEWHERE:
            self.not_run[f"{words[0]}: {ELSEWHERE[words[0]]}"] += 1
            return
        assert words[0] == "fedweave", f"{words}: mark it with the reason why it is not run"
        words, into = (words[:-2], words[-1]) if ">" in words else (words, os.devnull)
        self.monkeypatch.setattr(sys, "argv", ["fedweave", *(words[1:] if whole else fewer(words[1:]))])
        with open(Path(into).expanduser(), "w") as out, redirect_stdout(out), pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0, f"{words} ended with {ended.value.code}"
        self.ran += 1


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Return a page in a folder of its own, with the examples beside it as in a checkout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FEDWEAVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(plugins, "search_here", False)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    modules, handlers = set(sys.modules), [(s, signal.getsignal(s)) for s in (signal.SIGTERM, signal.SIGINT)]
    yield Page(monkeypatch)
    for name in set(sys.modules) - modules:  # those of this folder
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    for number, handler in handlers:
        signal.signal(number, handler)


@pytest.mark.parametrize("name", [name for name in PAGES if [*blocks((ROOT / name).read_text(encoding="utf-8"))]])
def test_every_block_of_a_page_runs(name, page):
    found = [*blocks((ROOT / name).read_text(encoding="utf-8"))]
    for block in found:
        page.run(block, f"{name}:{block.line}")
    print(f"{name}: {page.ran} ran; not run: {dict(page.not_run)}")


def test_marks_and_commands_are_read():
    text = "# A\n\n<!-- not run: needs a fleet -->\n```\nflwr run\n```\n1. x\n   ```python\n   a = 1\n   ```\n"
    first, second = blocks(text)
    assert first == Block(4, "", "flwr run\n", "not run", "needs a fleet")
    assert second == Block(8, "python", "a = 1\n", "", "")
    assert next(blocks(f"<!-- commands not run: why -->\n{text}")).value == "why"
    assert commands("fedweave run a \\\n  --set x='1 2'  # so\n# c\n\nls > b\n") == [
        ["fedweave", "run", "a", "--set", "x=1 2"],
        ["ls", ">", "b"],
    ]
    assert fewer(["compare", "a", "--seeds", "5"]) == ["compare", "a", "--seeds", "2", "--rounds", "2"]
    assert fewer(["resume", "a", "--rounds", "40"]) == ["resume", "a", "--rounds", "3"]
    assert fewer(["reproduce", "a", "--scale", "laptop"]) == ["reproduce", "a", "--scale", "smoke"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\n1 / 0\n```", ZeroDivisionError),
        ("```\nfedweave runn fedavg\n```", AssertionError),
        ("```bash\nrm -r x\n```", AssertionError),
        ("```toml\na = \n```", tomllib.TOMLDecodeError),
        ("```pyhton\na = 1\n```", AssertionError),
    ],
)
def test_a_block_that_does_not_work_fails(page, text, error):
    (block,) = blocks(text)
    with pytest.raises(error):
        page.run(block, "x")
