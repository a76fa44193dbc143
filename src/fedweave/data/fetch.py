"""Find publishers' files under the data root, check them, and fetch those that are missing."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedweave.core.settings import BadInput, brief

TIMEOUT = 30.0  # seconds without a byte


@dataclass(frozen=True)
class Offer:
    """What a publisher offers: one file, or an archive to unpack."""

    into: str  # path under the data root: the file, or the folder that an archive is unpacked into
    urls: tuple[str, ...] = ()  # the publisher first, then mirrors; empty if it cannot be fetched
    checksum: str = ""  # "md5:..." or "sha1:..." of what is downloaded
    archive: bool = False
    only: str = ""  # unpack only members whose name contains this
    how: str = ""  # how to get it by hand, where the address is not enough


def data_root(root: Path | str | None = None) -> Path:
    """Return the folder of the data files: ``root``, else FEDWEAVE_DATA, else ~/.cache/fedweave/data."""
    return Path(root or os.environ.get("FEDWEAVE_DATA") or "~/.cache/fedweave/data").expanduser()


def locate(data: str, places: Mapping[str, str], offer: Offer, root: Path | None = None) -> Path:
    """Return the first place that exists after checking it; fetch the offer when none does.

    ``places`` maps paths under the data root to their checksums ("" when the publisher gives none).
    """
    base = data_root(root)
    found, problem = _present(places, base), ""
    if found is None:
        problem = fetch(offer, base)
        found = _present(places, base)
    if found is None:
        raise BadInput(_missing(data, places, offer, base, problem))
    return found


def verify(path: Path, checksum: str) -> None:
    """Compare a file with its published checksum."""
    kind, _, expected = checksum.partition(":")
    if not expected:
        return
    try:
        with path.open("rb") as file:
            got = hashlib.file_digest(file, kind).hexdigest()
    except OSError as e:
        raise BadInput(f"{path} cannot be read: {e}.") from None
    if got != expected:
        raise BadInput(
            f"{path} is not the published file: its {kind.upper()} is {got}, expected {expected}. "
            "Delete or move it to fetch it again."
        )


def fetch(offer: Offer, base: Path) -> str:
    """Fetch an offer into ``base``; return the reason if that fails, otherwise an empty string."""
    if offer.urls and os.environ.get("FEDWEAVE_OFFLINE", "0") not in ("", "0"):
        return "FEDWEAVE_OFFLINE forbids fetching"
    from http.client import HTTPException  # what fetches is loaded where it is used

    problems: list[str] = []
    for url in offer.urls:
        try:
            _fetch(url, offer, base)
            return ""
        except (OSError, HTTPException, BadInput) as e:
            problems.append(f"fetching {url} failed: {e}")
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as e:
            problems.append(f"unpacking {url} failed: {e}")
    return "; ".join(problems)


def _fetch(url: str, offer: Offer, base: Path) -> None:
    target = base / offer.into
    with _scratch(target if offer.archive else target.parent) as scratch:
        file = scratch / url.rsplit("/", 1)[-1]
        _download(url, file)
        verify(file, offer.checksum)
        if offer.archive:
            _unpack(file, scratch / "content", offer.only)
            _merge(scratch / "content", target)
        else:
            os.replace(file, target)


@contextmanager
def _scratch(folder: Path) -> Generator[Path]:
    """Yield a temporary folder inside ``folder`` and remove it, and any folders created for it, afterwards."""
    created = [p for p in (folder, *folder.parents) if not os.path.lexists(p)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            yield Path(scratch)
    finally:
        for path in created:  # deepest first; folders that are not empty stay
            with suppress(OSError):
                path.rmdir()


def _download(url: str, file: Path) -> None:
    from urllib.request import Request, urlopen

    request = Request(url, headers={"User-Agent": "fedweave"})
    with urlopen(request, timeout=TIMEOUT) as reply, file.open("wb") as out:
        shutil.copyfileobj(reply, out, 1 << 20)
        expected = reply.headers.get("Content-Length")
    if expected is not None and str(file.stat().st_size) != expected.strip():
        raise OSError(f"the transfer broke off after {file.stat().st_size} of {brief(expected)} bytes")


def _unpack(file: Path, into: Path, only: str) -> None:
    into.mkdir()
    if tarfile.is_tarfile(file):
        with tarfile.open(file) as tar:  # the data filter refuses members that would land outside
            tar.extractall(into, [m for m in tar if only in m.name], filter="data")
        return
    with zipfile.ZipFile(file) as pack:
        members = [m for m in pack.namelist() if only in m]
        for member in members:
            if not (into / member).resolve().is_relative_to(into.resolve()):
                raise BadInput(f"its member {member!r} would land outside of the folder")
        pack.extractall(into, members)


def _merge(source: Path, target: Path) -> None:
    """Move everything to ``target``; files that already exist there are the user's and stay."""
    for path in source.iterdir():
        place = target / path.name
        if not os.path.lexists(place):
            os.replace(path, place)
        elif path.is_dir() and place.is_dir():
            _merge(path, place)


def _present(places: Mapping[str, str], base: Path) -> Path | None:
    for place, checksum in places.items():
        if os.path.exists(base / place):
            verify(base / place, checksum)
            return base / place
    return None


def _missing(data: str, places: Mapping[str, str], offer: Offer, base: Path, problem: str) -> str:
    first = next(iter(places))
    looked = " or ".join(str(base / place) for place in places)
    unpack = f" and unpack it in {base / offer.into}" if offer.archive else f" and save it as {base / first}"
    how = offer.how or f"Get it from {offer.urls[0]}{unpack}"
    reason = f"{problem[0].upper()}{problem[1:]}. " if problem else ""
    return (
        f"{data} needs {first}, which is missing: looked for {looked}. {reason}"
        f"{how}, or set FEDWEAVE_DATA to the folder that holds {first}."
    )
