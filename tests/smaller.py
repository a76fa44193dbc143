"""Programs and snippets with few rounds, seeds and trials, so that all of them can run in the tests."""

import re

FEWER = {"rounds": 2, "seeds": 2, "n_trials": 2}


def smaller(code: str) -> str:
    """Return Python with smaller numbers where ``rounds=20`` and the like is written."""
    return re.sub(rf"\b({'|'.join(FEWER)})=\d+", lambda found: f"{found[1]}={FEWER[found[1]]}", code)
