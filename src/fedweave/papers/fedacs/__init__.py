"""FedACS: its figures and tables, its theory on quadratics, and questions beyond it."""

from fedweave.papers.fedacs import arithmetic, images, privacy, quadratics

STUDIES = (*images.STUDIES, *quadratics.STUDIES, *arithmetic.STUDIES, *privacy.STUDIES)
