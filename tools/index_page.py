"""Make the project's page on a package index from README.md; hatchling calls it when it builds.

An index shows the text alone: there are no files for relative links to lead to. They become links into
``[project.urls] Repository`` at the tag of the version, or plain text while no address is stated.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def index_page(text: str, repository: str | None, version: str) -> str:
    """Return a README with absolute links; without a repository they are text, and pictures are left out."""

    def absolute(link: re.Match[str]) -> str:
        picture, words, path = link.groups()
        if repository is None:
            return "" if picture else words
        return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/v{version}/{path})"

    return re.sub(r"\n{3,}", "\n\n", LINK.sub(absolute, text))


class IndexPage(MetadataHookInterface):
    """Hatchling's way to state the readme."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        page = index_page(text, metadata.get("urls", {}).get("Repository"), metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": page}
