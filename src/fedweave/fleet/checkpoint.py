"""A strategy as a folder: its settings as JSON, its state and what it knows of the fleet as safetensors. No pickle.

``strategy.json`` names the folder of the last save and the digests of its files. It is replaced when these are
complete, so that a kill leaves the save before as it was.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord
from pydantic import Field
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedweave.core import plugins
from fedweave.core.crash_points import crash_point
from fedweave.core.paths import check_import, from_run_folder
from fedweave.core.records import Array, ServerState
from fedweave.core.settings import BadInput, brief
from fedweave.core.spec import build
from fedweave.core.typed_json import Checked
from fedweave.fleet.server.seats import WHO
from fedweave.fleet.wire.tensors import FLOATS, packed
from fedweave.method import Method
from fedweave.store.states import Tables, is_intact, pack, unpack
from fedweave.tables.files import read_bytes, read_json, shown_path, writable, write_file

FORMAT, FILE, STATE, FLEET = 1, "strategy.json", "state.safetensors", "fleet.safetensors"
FOLDER = r"^round-\d{6,}\.\d+$"  # of one save
Size = Annotated[int, Field(ge=0, lt=2**48)]


class Tensor(Checked):
    """An array of the model: its type and shape."""

    type: Annotated[str, Field(pattern="^(float(16|32|64)|u?int(8|16|32|64)|bool)$")]
    shape: list[Size]


class About(Checked):
    """The content of strategy.json."""

    format: int
    folder: Annotated[str, Field(pattern=FOLDER)]
    sha256: dict[str, str]
    method: dict[str, Any]
    options: dict[str, Any]
    arrays: dict[str, Tensor]
    rounds: Size | None = None  # that start() was asked for in all


class Saved(NamedTuple):
    """What a folder holds."""

    about: Mapping[str, Any]
    state: ServerState
    arrays: Mapping[str, Array]

    def part(self, name: str) -> dict[str, Array]:
        """Return the arrays of one part by their own names."""
        return {key[len(name) + 1 :]: array for key, array in self.arrays.items() if key.startswith(f"{name}.")}

    @property
    def like(self) -> ArrayRecord:
        """A model with the arrays of the saved one: those outside of the vector as they were, the others zero."""
        rest, tensors = self.part("rest"), self.about["arrays"]
        inside = {name: t for name, t in tensors.items() if t["type"] in FLOATS}
        outside = {name: {"type": str(a.dtype), "shape": list(a.shape)} for name, a in rest.items()}
        if {**outside, **inside} != tensors or sum(prod(t["shape"]) for t in inside.values()) != self.state.x.size:
            raise BadInput(f"The saved model does not have the arrays that {FILE} says.")
        made = {name: rest[name] if name in rest else np.zeros(t["shape"], t["type"]) for name, t in tensors.items()}
        return ArrayRecord({name: packed(array) for name, array in made.items()})


def write(path: Path, about: Mapping[str, Any], state: ServerState, arrays: Mapping[str, Array]) -> None:
    """Save a strategy, beside whatever was saved at ``path`` before, which is then removed."""
    with writable(path):
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()) and not (path / FILE).is_file() and not _saves(path):
            raise BadInput(f"The folder {shown_path(path)} holds something else than a saved strategy: name another.")
        number = 1 + max((int(folder.suffix[1:]) for folder in _saves(path)), default=0)
        folder = path / f"round-{state.round:06d}.{number}"
        folder.mkdir()
        Tables(folder).keep(state)
        crash_point("tables kept")
        files = {STATE: pack(state), FLEET: save({name: np.array(a, order="C") for name, a in arrays.items()})}
        for name, content in files.items():
            write_file(folder / name, content)
        sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        head = {"format": FORMAT, "folder": folder.name, "sha256": sha256}
        write_file(path / FILE, (json.dumps({**about, **head}, indent=1) + "\n").encode())
        crash_point("state written")
        for old in _saves(path):
            if old != folder:
                shutil.rmtree(old)


def _saves(path: Path) -> list[Path]:
    return [folder for folder in path.iterdir() if re.fullmatch(FOLDER, folder.name) and folder.is_dir()]


def read(path: Path) -> Saved:
    """Return what a folder holds; refuse whatever is not as it was written."""
    if not (path / FILE).is_file():
        raise BadInput(f"{shown_path(path)} is not a saved strategy: it has no {FILE}.")
    about = read_json(path / FILE, About)
    if about["format"] != FORMAT:
        raise BadInput(f"{shown_path(path / FILE)} has format {about['format']}, and this version reads {FORMAT}.")
    folder, content = path / about["folder"], dict[str, bytes]()
    for name in (STATE, FLEET):
        content[name] = read_bytes(folder / name)
        if hashlib.sha256(content[name]).hexdigest() != about["sha256"].get(name):
            raise BadInput(f"{shown_path(folder / name)} is missing or damaged.")
    state, tables = unpack(content[STATE]), Tables(folder)
    state = tables.restore({state.round: state})[state.round]
    if not is_intact(state):
        raise BadInput(f"The tables in {shown_path(folder)} are missing or damaged.")
    try:
        arrays = load(content[FLEET])
    except SafetensorError as e:
        raise BadInput(f"{shown_path(folder / FLEET)} cannot be read: {brief(str(e))}.") from None
    saved = Saved(about, tables.moved(state, "ram"), arrays)
    n = arrays.get("steps", np.zeros(0)).size
    columns = {"fleet.samples", "fleet.holder", "steps", "weights"} | {k for k in arrays if not k.startswith("rest.")}
    if any(k not in arrays or arrays[k].shape != ((n, WHO) if k == "fleet.holder" else (n,)) for k in columns):
        raise BadInput(f"{shown_path(folder / FLEET)} does not have one value for each client.")
    return saved


def settings_of(saved: Saved, kind: type, trust: bool) -> tuple[Method, dict[str, Any]]:
    """Return the method and the options, of this ``kind``; only with ``trust`` plug-ins are imported."""
    specs = saved.about["method"], saved.about["options"]
    with from_run_folder(trust):
        for spec in specs:
            check_import(*plugins.not_imported(spec))
        method, options = build(Method, specs[0], "method"), build(kind, specs[1], "options")
    return method, {field.name: getattr(options, field.name) for field in fields(options)}
