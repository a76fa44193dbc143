"""Questions that no single paper asks."""

from fedweave.papers.beyond import across, asynchronous, demo, joint, participation

STUDIES = (
    participation.PARTICIPATION,
    *asynchronous.STUDIES,
    *joint.STUDIES,
    *demo.STUDIES,
    *across.STUDIES,
)
