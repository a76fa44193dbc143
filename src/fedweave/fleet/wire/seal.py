"""A seal on every answer of a client of ours: its dispatch, its client, and the digest of all it carries.

TLS protects the way. The seal tells what happens at its ends: an earlier answer that is sent again, one in
another client's name, and bits that changed in a queue or a memory. It is no signature: Flower knows nodes by keys.
"""

from __future__ import annotations

import hashlib
import json

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedweave.core.settings import brief
from fedweave.fleet.wire.tensors import Unfit, records_of

SEAL = "seal"
OURS = ("update", "payload")  # the records that only a client of ours sends


def sealed(content: RecordDict, round: int, client: int) -> RecordDict:
    """Return an answer with its seal: ``round`` is that of the request, ``client`` the number that it asked."""
    content[SEAL] = ConfigRecord({"round": round, "client": client, **_digests(content)})
    return content


def check_seal(content: RecordDict, round: int, client: int, arrays: bool = True) -> None:
    """Refuse an answer whose seal is missing, broken or for something else; apps of others send none.

    Without ``arrays`` these may have changed since: a wrapper around the strategy has clipped them.
    """
    seal = records_of(content, ConfigRecord).get(SEAL)
    if seal is None:
        if ours := [name for name in OURS if name in content]:
            raise Unfit(f"sent its {ours[0]} without a seal; use the same release of fedweave on both sides")
        return
    if seal.get("round") != round:
        raise Unfit(f"replayed: its answer is for dispatch {brief(seal.get('round'), 20)}, this is {round}")
    if seal.get("client") != client:
        raise Unfit(f"its answer is that of client {brief(seal.get('client'), 20)}")
    now = _digests(content)
    if any(seal.get(kind) != now[kind] for kind in (("arrays", "numbers") if arrays else ("numbers",))):
        raise Unfit("its answer does not have the digest that it had when it was sent")


def _digests(content: RecordDict) -> dict[str, str]:
    """Return the SHA-256 of all arrays and that of all numbers of an answer, each with its name."""
    found = hashlib.sha256()
    for name, record in sorted(records_of(content, ArrayRecord).items()):
        for key, array in record.items():
            found.update(repr((name, key, array.dtype, tuple(array.shape), array.stype, len(array.data))).encode())
            found.update(array.data)
    numbers = {name: dict(record) for name, record in sorted(records_of(content, MetricRecord).items())}
    told = hashlib.sha256(json.dumps(numbers, sort_keys=True).encode())
    return {"arrays": found.hexdigest(), "numbers": told.hexdigest()}
