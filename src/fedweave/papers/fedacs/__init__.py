"""FedACS: its figures and tables, its theory on quadratics, and questions beyond it."""

from fedweave.papers.fedacs import assumptions, images, privacy, quadratics

STUDIES = (*images.STUDIES, *quadratics.STUDIES, *assumptions.STUDIES, *privacy.STUDIES)
