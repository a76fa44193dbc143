"""Pack sources, ledger, results and pages as one file fit for a repository of research data.

``python -m fedweave.papers.atlas.archive ROOT FILE.tar.gz``. The same content gives the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import fedweave
from fedweave.core.errors import BadInput
from fedweave.papers.common.cache import code_digest
from fedweave.papers.common.ledger import frozen
from fedweave.tables.files import writable, write_file

FOLDERS = ("src/fedweave", "results", "docs/atlas")
FILES = ("CITATION.cff", "LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "constraints.txt")
DOCUMENTS = ("docs/results.md", "docs/choosing.md", "docs/reproduce.md", "docs/authors.md")
KINDS = (".py", ".typed", ".toml", ".json", ".md", ".html", ".css", ".js")


def build_archive(root: Path) -> bytes:
    """Return the archive of a repository: its files, and MANIFEST.json with versions and every file's SHA-256."""
    contents = {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(_files(root))}
    manifest = {
        "name": "fedweave",
        "version": fedweave.__version__,
        "commit": _commit(root),
        "code": code_digest(),
        "frozen claims": len(frozen()),
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
    }
    contents["MANIFEST.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in sorted(contents.items()):
            member = tarfile.TarInfo(f"fedweave-{fedweave.__version__}/{name}")
            member.size, member.mode = len(content), 0o644  # no times and no owners: they are not content
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


def _files(root: Path) -> Iterator[Path]:
    for name in (*FILES, *DOCUMENTS):
        if not (root / name).is_file():
            raise BadInput(f"{str(root)!r} has no {name}: it is no repository of fedweave.")
        yield root / name
    for folder in FOLDERS:
        for path in (root / folder).rglob("*"):
            hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
            if path.is_file() and path.suffix in KINDS and not hidden and "unfinished" not in path.parts:
                yield path


def _commit(root: Path) -> str:
    """Return the commit of the sources, with a sign where files differ from it; nothing outside of git."""
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty", "--exclude", "*"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


if __name__ == "__main__":
    target = Path(sys.argv[2])
    with writable(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, build_archive(Path(sys.argv[1])))
