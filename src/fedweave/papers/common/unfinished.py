"""Finished runs of an unfinished item, kept beside the records: the next sitting continues with them on any machine.

``unfinished/ITEM.SCALE/`` has an ``index.json``, which says of every run what was asked for and by which code, software
and processor it was computed, and one file per run. Nothing in them is code.
"""

from __future__ import annotations

import hashlib
import shutil
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fedweave.core.settings import BadInput
from fedweave.core.typed_json import Checked
from fedweave.papers.common.cache import Facts, code_digest
from fedweave.papers.common.record import Record, pack, unpack
from fedweave.papers.common.recorded import to_json
from fedweave.tables.files import read_bytes, read_json, shown_path, writable, write_file

Key = tuple[str, str, int]  # column, arm, seed
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
# Most of a record's bytes: what clients report in each round. Few studies need it (``Study.needs_reports``).
DROPPED = ("loss", "first_gradient", "first_loss")


class Entry(Checked):
    """A finished run."""

    column: str
    arm: str
    seed: int
    settings: Digest  # of what was asked for, the data among it
    source: Digest  # of the parts that the run uses
    code: Digest  # of the whole library
    versions: dict[str, str]
    processor: dict[str, str]
    content: Digest  # of the file

    def is_of(self, facts: Facts) -> bool:
        """Return whether this is what is asked for, by the same code; another processor may have computed it."""
        same = self.settings == facts.settings and self.source == facts.source
        return same and self.versions == facts.versions


def thin(record: Record) -> Record:
    """Return a record without what clients report."""
    return record._replace(clients={name: column for name, column in record.clients.items() if name not in DROPPED})


class Unfinished:
    """The finished runs of an item that is not finished."""

    def __init__(self, folder: Path, accept_earlier: bool = False, whole: bool = False) -> None:
        """Read the index of an earlier sitting.

        ``accept_earlier``: use whole seeds of other versions of the code; ``whole``: keep what clients report too.
        """
        self.folder, self.accept_earlier, self.whole = folder, accept_earlier, whole
        index = folder / "index.json"
        found = read_json(index, dict[Digest, Entry]) if index.exists() else {}
        self.entries = {name: Entry(**entry) for name, entry in found.items()}
        self.used: dict[str, Entry] = {}  # by the name that the run has now
        self.ignored: set[str] = set()  # runs of other versions, which were not to be used
        self._new: dict[str, tuple[Key, Facts, Record]] = {}

    def find(self, facts: Mapping[Key, Facts], known: Mapping[str, Record]) -> dict[str, Record]:
        """Return runs of earlier sittings by the names that they have now; ``known`` ones are not looked for.

        Of other versions of the code only whole seeds are used, since methods are compared seed by seed: all columns
        and arms of one version.
        """
        chosen: dict[str, str] = {}
        for each in facts.values():
            same = sorted(name for name, entry in self.entries.items() if entry.is_of(each))
            for name in same:  # this version would have computed them too
                self.entries[name] = self.entries[name].model_copy(update={"code": code_digest()})
            if each.name not in known and same:
                chosen[each.name] = each.name if each.name in same else same[0]
        for seed in {seed for *_, seed in facts}:
            wanted = [each for key, each in facts.items() if key[2] == seed]
            if any(each.name not in known and each.name not in chosen for each in wanted):
                chosen |= self._earlier(wanted)
        found = {name: record for name, file in chosen.items() if (record := self._load(file)) is not None}
        self.used |= {name: self.entries[chosen[name]] for name in found}
        return found

    def _earlier(self, wanted: list[Facts]) -> dict[str, str]:
        """Return the files of a whole seed that another version computed, if there is one and it may be used."""
        versions = defaultdict[str, dict[str, str]](dict)
        for name, entry in self.entries.items():
            if (self.folder / f"{name}.run").is_file():
                versions[str((entry.code, sorted(entry.versions.items())))][entry.settings] = name
        for files in versions.values():
            if all(each.settings in files for each in wanted):
                if self.accept_earlier:
                    return {each.name: files[each.settings] for each in wanted}
                self.ignored |= {files[each.settings] for each in wanted}
        return {}

    def _load(self, name: str) -> Record | None:
        """Return a run; None if its file was removed."""
        path = self.folder / f"{name}.run"
        content = read_bytes(path)
        if not content:
            return None
        try:
            if hashlib.sha256(content).hexdigest() == self.entries[name].content:
                return unpack(content)
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error):
            pass
        raise BadInput(f"{shown_path(path)} is damaged. Remove it, and the run is computed again.")

    def add(self, facts: Mapping[Key, Facts], records: Mapping[str, Record]) -> None:
        """Take runs of this version, to be written by ``save``."""
        self._new |= {f.name: (key, f, records[f.name]) for key, f in facts.items() if f.name in records}

    def save(self) -> None:
        """Write what was added; the index comes last, so that it never names what is not there."""
        if not self._new:
            return
        with writable(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, ((column, arm, seed), facts, record) in self._new.items():
                content = pack(record if self.whole else thin(record))
                write_file(self.folder / f"{name}.run", content)
                self.entries[name] = Entry(
                    column=column,
                    arm=arm,
                    seed=seed,
                    settings=facts.settings,
                    source=facts.source,
                    code=code_digest(),
                    versions=dict(facts.versions),
                    processor=dict(facts.processor),
                    content=hashlib.sha256(content).hexdigest(),
                )
            self._write_index(self.entries)

    def _write_index(self, entries: Mapping[str, Entry]) -> None:
        plain = {name: entry.model_dump() for name, entry in sorted(entries.items())}
        write_file(self.folder / "index.json", to_json(plain))

    def remove(self, kept: Collection[str] = ()) -> None:
        """Remove the runs of a finished item, but for those of columns that were not part of it."""
        left = {name: entry for name, entry in self.entries.items() if entry.column in kept}
        if left:
            self._write_index(left)
            for name in self.entries.keys() - left:
                (self.folder / f"{name}.run").unlink(missing_ok=True)
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # other items are not finished, or there was none
            self.folder.parent.rmdir()


class Origins:
    """By which code, software and processor the runs of each seed were computed."""

    def __init__(self) -> None:
        self._seeds = defaultdict[str, set[int]](set)
        self._facts: dict[str, dict[str, Any]] = {}

    def add(self, key: Key, facts: Facts, unfinished: Unfinished | None) -> None:
        """Note a run of this version, or one of an earlier sitting."""
        entry = unfinished.used.get(facts.name) if unfinished else None
        code = code_digest() if entry is None or entry.is_of(facts) else entry.code
        by = entry or facts
        found = {"code": code, "versions": dict(by.versions), "processor": dict(by.processor)}
        self._facts[str(found)] = found
        self._seeds[str(found)].add(key[2])

    def plain(self) -> list[dict[str, Any]]:
        """Return each origin with its seeds."""
        return [{"seeds": sorted(seeds), **self._facts[name]} for name, seeds in sorted(self._seeds.items())]
