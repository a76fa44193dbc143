"""A server state as safetensors bytes, with its tables in slot files beside it. No pickle anywhere.

A state file records the slot of each table row. A row is written once, to ``rows-<part>.<name>.bin``, and its slot is
reused only after every stored state that refers to it is deleted. So a save writes only the rows that changed since the
last one, and an interruption never damages the stored states.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedweave.core.flights import impossible
from fedweave.core.paths import check_name
from fedweave.core.records import Array, ServerState
from fedweave.core.settings import BadInput, brief
from fedweave.core.typed_json import Checked, parse_json
from fedweave.tables.files import check_file
from fedweave.tables.rows import STORED, Held, Precision, Rows, Where
from fedweave.tables.slots import Place, SlotFile

FORMAT = 5
READABLE = ("1", "2", "3", "4", "5")  # 4: no fleet; 3: no flights; 2: no best model; 1: other names
PARTS = ("sampler", "aggregator", "server", "clients", "upload", "refusals", "flights", "best", "fleet")
MOST_SLOTS = 64  # per row; a file has room for a few states
RENAMED = {"trust": "refusals"}  # parts of states in format 1


class Header(Checked):
    """The header of a state file: what is not an array, as text."""

    metadata: dict[str, str] = Field(alias="__metadata__")


class About(Checked):
    """A table in the header of a state file."""

    dim: Annotated[int, Field(ge=0, lt=2**48)]
    precision: Precision


class Saved(NamedTuple):
    """A table as stored in a state file: the slots of its rows, without their values."""

    dim: int
    precision: Precision
    slot: Array  # (N,) −1 where never written
    scale: Array  # (N,)
    check: Array  # (N,) CRC-32 of the stored bytes


def pack(state: ServerState) -> bytes:
    """Return a state as bytes: flat arrays, tables by their slots, and round and clock as text, which is exact."""
    arrays, tables = {"x": state.x}, {}
    for key, value in _entries(state):
        if isinstance(value, Rows):
            saved = _saved(value)
            tables[key] = {"dim": saved.dim, "precision": saved.precision}
            arrays |= {f"{key}/{name}": getattr(saved, name) for name in ("slot", "scale", "check")}
        else:
            arrays[key] = np.asarray(value, order="C")
    header = {"format": str(FORMAT), "round": str(state.round), "clock": float(state.clock).hex()}
    return in_order(save(arrays, header | ({"tables": json.dumps(tables)} if tables else {})))


def in_order(content: bytes) -> bytes:
    """Return safetensors bytes with their metadata sorted; the library shuffles it every time."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def unpack(content: bytes) -> ServerState:
    """Return the state in these bytes, with its tables as ``Saved``; refuse any other content (BadInput)."""
    try:
        return _unpacked(content)
    except (SafetensorError, LookupError, ValueError, TypeError, OverflowError) as e:
        raise BadInput(f"These {len(content):,} bytes are not a state of fedweave: {brief(str(e), 300)}.") from None


def _unpacked(content: bytes) -> ServerState:
    size = int.from_bytes(content[:8], "little")
    header = parse_json(content[8 : 8 + size], Header, "the header")["__metadata__"]
    if header["format"] not in READABLE:
        raise ValueError(f"it has format {header['format']}, and this version reads up to {FORMAT}")
    arrays = load(content)
    parts: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    for key, about in parse_json(header.get("tables", "{}"), dict[str, About], "the header").items():
        part, _, name = key.partition(".")
        columns = (arrays.pop(f"{key}/{column}") for column in ("slot", "scale", "check"))
        parts[part][name] = _checked(Saved(about["dim"], about["precision"], *columns), check_name(key))
    x = arrays.pop("x")
    if x.ndim != 1 or x.dtype.kind != "f":
        raise ValueError("its model is not a vector of numbers")
    for key, array in arrays.items():
        part, _, name = key.partition(".")
        parts[RENAMED.get(part, part)][name] = array
    _check_best(parts["best"], x)
    _check_fleet(parts["fleet"])
    state = ServerState(round=int(header["round"]), x=x, clock=float.fromhex(header["clock"]), **parts)
    if state.flights:
        _check_flights(state)
    return state


def _check_best(best: Mapping[str, Any], x: Array) -> None:
    """Refuse what is not a model like ``x`` with its round and its value, or nothing at all."""
    wanted = {"x": (x.shape, x.dtype.kind), "round": ((), "i"), "value": ((), "f")}
    found = {name: (array.shape, array.dtype.kind) for name, array in best.items() if isinstance(array, np.ndarray)}
    if best and found != wanted:
        raise ValueError("its best model does not fit its model")


def _check_fleet(fleet: Mapping[str, Any]) -> None:
    """Refuse what is not who has each client's seat, and its samples, or nothing at all."""
    n = np.size(fleet.get("samples", ()))
    wanted = {"samples": ((n,), "i"), "holder": ((n, 32), "u"), "covered": ((n,), "f")}
    found = {name: (array.shape, array.dtype.kind) for name, array in fleet.items() if isinstance(array, np.ndarray)}
    fine = set(found) == set(fleet) and {"samples"} <= set(found) and found.items() <= wanted.items()
    if fleet and not (fine and (fleet["samples"] >= 0).all()):
        raise ValueError("its fleet does not have a number of samples and a holder for each client")


def _check_flights(state: ServerState) -> None:
    """Refuse flights that no run could have under way, or whose models are not there."""
    columns = {name: value for name, value in state.flights.items() if not isinstance(value, Saved)}
    tables = {name: value for name, value in state.flights.items() if name not in columns}
    if wrong := impossible(columns, state.round):
        raise ValueError(wrong)
    if not {"x"} <= set(tables) <= {"x", "broadcast"} or any(t.dim != state.x.size for t in tables.values()):
        raise ValueError("the models of its flights do not fit its model")
    for slot in (table.slot for table in tables.values()):
        if not slot.size or (slot[columns["version"] % slot.size] < 0).any():
            raise ValueError("it lacks a model, or a broadcast, that a flight began with")


def _checked(table: Saved, key: str) -> Saved:
    """Return a table whose slots are whole numbers that its rows could fill; others would exhaust the memory."""
    types = [(column.dtype, column.shape) for column in (table.slot, table.scale, table.check)]
    n = table.slot.size
    if types != [(np.dtype(kind), (n,)) for kind in (np.int64, np.float64, np.uint32)]:
        raise ValueError(f"the table {key} must have as many slots, scales and checksums as rows")
    if (table.slot < -1).any() or (table.slot >= MOST_SLOTS * (n + 1)).any():
        raise ValueError(f"the table {key} has slots that no table of {n} rows uses")
    return table


def misfit(state: ServerState, start: ServerState, parts: Collection[str]) -> str:
    """Return in which of these parts a stored state differs in shape from the first one of its run; "" if in none."""

    def shapes(of: ServerState) -> dict[str, Any]:
        kept = {key: np.shape(value) for key, value in _entries(of) if key.partition(".")[0] in parts}
        return {"x": (of.x.shape, of.x.dtype), **kept}

    mine, first = shapes(state), shapes(start)
    return ", ".join(brief(key) for key in {**mine, **first} if mine.get(key) != first.get(key))


def _entries(state: ServerState) -> Iterator[tuple[str, Any]]:
    for part in PARTS:
        yield from ((f"{part}.{name}", value) for name, value in getattr(state, part).items())


def _saved(rows: Rows) -> Saved:
    places = [place_of(row) for row in rows.rows]
    slot = np.array([p.slot if p else -1 for p in places], np.int64)
    scale = np.array([p.scale if p else 1 for p in places], np.float64)
    check = np.array([p.check if p else 0 for p in places], np.uint32)
    return Saved(rows.dim, rows.precision, slot, scale, check)


def place_of(row: Held | Place | None) -> Place | None:
    """Return a row's place on disk, None if it has none."""
    return row.kept if isinstance(row, Held) else row


def map_tables(state: ServerState, change: Callable[[str, Any], Any]) -> ServerState:
    """Return the state with ``change(key, table)`` in place of each table; tables that become None are left out."""

    def change_part(part: str) -> dict[str, Any]:
        entries: Mapping[str, Any] = getattr(state, part)
        new = {n: change(f"{part}.{n}", v) if isinstance(v, Rows | Saved) else v for n, v in entries.items()}
        return {n: v for n, v in new.items() if v is not None}

    return state._replace(**{part: change_part(part) for part in PARTS})


class Tables:
    """The row files of one run folder and the places its stored states use; without a folder, temporary files."""

    def __init__(self, folder: Path | None):
        self._folder = folder
        self._files: dict[str, SlotFile] = {}
        self._kept: dict[int, list[Place]] = {}  # by round

    def _file(self, key: str, rows: Rows | Saved) -> SlotFile:
        if key not in self._files:
            path = self._folder and self._folder / f"rows-{check_name(key)}.bin"
            if path:
                check_file(path, write=True)
            used = rows.slot[rows.slot >= 0].tolist() if isinstance(rows, Saved) else ()
            self._files[key] = SlotFile(path, rows.dim, STORED[rows.precision], used)
        return self._files[key]

    def moved(self, state: ServerState, where: Where) -> ServerState:
        """Return the state with its tables in memory or in the files of this folder."""
        return map_tables(state, lambda key, rows: rows.moved(self._file(key, rows) if where == "disk" else None))

    def keep(self, state: ServerState) -> None:
        """Write the rows that are not on disk yet, and keep all rows of this state until ``forget`` drops its round."""
        places: list[Place] = []
        for key, rows in _entries(state):
            if isinstance(rows, Rows):
                file = self._file(key, rows)
                rows.keep(file)
                file.sync()
                places += [p for p in map(place_of, rows.rows) if p]
        self._kept[state.round] = places

    def forget(self, gone: Callable[[int], bool]) -> None:
        """Release the states of these rounds; their slots may be reused."""
        self._kept = {round: places for round, places in self._kept.items() if not gone(round)}

    def restore(self, states: Mapping[int, ServerState]) -> dict[int, ServerState]:
        """Return unpacked states with their tables opened on disk, and keep the rows of all of them."""
        everything: dict[str, Saved] = {}
        for state in states.values():
            for key, saved in _entries(state):
                if isinstance(saved, Saved):
                    before = everything.get(key, saved)
                    everything[key] = saved._replace(slot=np.union1d(before.slot, saved.slot))
        # One place per slot, however many states share it: the slot is freed when its place is garbage-collected.
        places = {(p.file, p.slot): p for kept in self._kept.values() for p in kept}

        def open(key: str, saved: Saved) -> Rows:
            file = self._file(key, everything[key])
            for slot, scale, check in zip(saved.slot.tolist(), saved.scale.tolist(), saved.check.tolist(), strict=True):
                if slot >= 0 and (file, slot) not in places:
                    places[file, slot] = Place(file, slot, scale, check)
            rows = [places.get((file, slot)) for slot in saved.slot.tolist()]
            return Rows(rows, saved.dim, saved.precision, "disk", file)

        opened = {round: map_tables(state, open) for round, state in states.items()}
        for state in opened.values():
            self.keep(state)
        return opened


def is_intact(state: ServerState) -> bool:
    """Return whether every table row of the state is on disk as it was written."""
    for _, rows in _entries(state):
        if isinstance(rows, Rows) and (places := [place for place in map(place_of, rows.rows) if place]):
            if places[0].file.size < rows.dim * rows.stored.itemsize:  # before so much memory is asked for
                return False
            scratch = np.empty(rows.dim, rows.stored)
            if not all(place.is_intact(scratch) for place in places):
                return False
    return True
