"""Questions that no single paper asks."""

from fedweave.papers.beyond import participation

STUDIES = (participation.PARTICIPATION,)
