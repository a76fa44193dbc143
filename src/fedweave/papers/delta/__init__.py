"""DELTA: its figures 2 to 7 and 9 to 15 and tables 1 to 9, its theorems, and studies beyond the paper."""

from fedweave.papers.delta import attacks, exact, images, motivation, regression

STUDIES = (*images.STUDIES, *motivation.STUDIES, *regression.STUDIES, *exact.STUDIES, *attacks.STUDIES)
