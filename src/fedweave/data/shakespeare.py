"""Eight plays of Shakespeare, a client for every role: next-character prediction with natural clients."""

from __future__ import annotations

import zipfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from fedweave.core.settings import BadInput
from fedweave.data.columns import Array
from fedweave.data.dataset import Dataset
from fedweave.data.fetch import Offer, locate

LENGTH = 80  # characters of a sample, as in LEAF
LEAST = 5  # samples of a role; those with fewer are left out
TEST_SHARE = 0.2  # the last lines of each role
PLACE = "shakespeare/shakespeare.zip"
CHECKSUM = "sha256:f1251d8c254710363254ba29c9dc0888d5cb13d5ac736ebc6fb14380f447cfc3"
OFFER = Offer(
    PLACE, ("https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/shakespeare.zip",), CHECKSUM
)


def shakespeare(root: Path | None = None) -> Dataset:
    """Shakespeare, eight plays: next characters, a client for each of 187 roles; needs files (0.5 MB, fetched).

    A sample is 80 characters of a role's speeches and, as labels, the characters that follow each of them. The last
    fifth of a role's samples is its test set.
    """
    path = locate("shakespeare", {PLACE: CHECKSUM}, OFFER, root)
    roles = {role: text for role, text in sorted(_speeches(path).items()) if _samples(text) >= LEAST}
    alphabet = sorted(set("".join(roles.values())))
    code = {character: i for i, character in enumerate(alphabet)}
    train, test = [], []
    for number, text in enumerate(roles.values()):
        n = _samples(text)
        tokens = np.array([code[c] for c in text[: n * LENGTH + 1]], np.int64)
        x, y = tokens[:-1].reshape(n, LENGTH), tokens[1:].reshape(n, LENGTH)
        cut = n - max(1, round(TEST_SHARE * n))
        train.append((x[:cut], y[:cut], np.full(cut, number)))
        test.append((x[cut:], y[cut:], np.full(n - cut, number)))
    (x, y, group), (test_x, test_y, test_group) = (_joined(parts) for parts in (train, test))
    return Dataset(
        name="shakespeare",
        x=x,
        y=y,
        test_x=test_x,
        test_y=test_y,
        classes=len(alphabet),
        group=group,
        test_group=test_group,
    )


def _samples(text: str) -> int:
    return (len(text) - 1) // LENGTH


def _joined(parts: list[tuple[Array, Array, Array]]) -> tuple[Array, ...]:
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _speeches(path: Path) -> dict[tuple[str, str], str]:
    """Return what each role says, by (play, speaker), lines separated by line ends."""
    said: dict[tuple[str, str], list[str]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in sorted(n for n in archive.namelist() if n.endswith(".xml")):
                play = Path(name).stem
                for speech in ElementTree.fromstring(archive.read(name)).iter("SPEECH"):
                    lines = ["".join(line.itertext()).strip() + "\n" for line in speech.iter("LINE")]
                    for speaker in speech.iter("SPEAKER"):
                        said.setdefault((play, (speaker.text or "").strip().upper()), []).extend(lines)
    except (zipfile.BadZipFile, ElementTree.ParseError, OSError) as e:
        raise BadInput(f"{path} cannot be read: {e}. Delete it to fetch it again.") from None
    return {role: "".join(lines) for role, lines in said.items()}
