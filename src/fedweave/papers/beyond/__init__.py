"""Questions that no single paper asks."""

from fedweave.papers.beyond import asynchronous, joint, participation

STUDIES = (participation.PARTICIPATION, *asynchronous.STUDIES, *joint.STUDIES)
