"""The example that CONTRIBUTING builds on does what it says."""

import runpy
from pathlib import Path

import numpy as np

import fedweave as fw

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_own_sampler_asks_whoever_was_silent_longest(tiny):
    own = runpy.run_path(str(EXAMPLES / "own_sampler.py"))
    sampler = own["LongestSilent"](per_round=2)
    result = fw.run(tiny(fw.Method(sampler, name="own"), system=fw.system.Uniform(), rounds=6))
    asked = result.clients["client"].reshape(6, 2)
    assert sorted(asked[:3].ravel()) == list(range(6))  # three rounds of two reach all six clients
    assert np.array_equal(np.sort(asked[3:].ravel()), np.arange(6))


def test_contributing_shows_the_code_of_the_example():
    shown = (EXAMPLES.parent / "CONTRIBUTING.md").read_text().split("```python")[1].split("```")[0]
    code = (EXAMPLES / "own_sampler.py").read_text()
    for line in shown.splitlines():
        if "(self" not in line:  # signatures are shown without their types
            assert line in code.splitlines(), line
