"""Questions that no single paper asks."""

from fedweave.papers.beyond import asynchronous, participation

STUDIES = (participation.PARTICIPATION, *asynchronous.STUDIES)
