"""The next token at every position of a sequence: language models, of characters or words."""

from __future__ import annotations

import math
from typing import Any

from fedweave.tasks.task import Batch, Sums, Task

PADDING = -100  # torch's own mark for labels that do not count


class NextToken(Task):
    """Outputs are logits (B, T, tokens), labels the tokens that follow (B, T); ``ignore`` marks padding.

    In training every sample counts the same, whatever its length: its loss is the mean over its tokens. Loss, accuracy
    and perplexity of a model are over all tokens of the test set.
    """

    primary = "perplexity"

    def __init__(self, ignore: int = PADDING):
        self.ignore = int(ignore)

    def loss(self, output: Any, batch: Batch) -> Any:
        each, real = self._each(output, batch)
        return each.sum(1) / real.sum(1).clamp(min=1)

    def measure(self, output: Any, batch: Batch) -> dict[str, tuple[Any, Any]]:
        """Return sums over tokens: their losses, and how many were the most likely one."""
        each, real = self._each(output, batch)
        tokens = real.sum()
        hits = ((output.argmax(2) == batch.y) & real).sum()
        return {"loss": (each.sum(), tokens), "accuracy": (hits, tokens)}

    def finish(self, sums: Sums) -> dict[str, Any]:
        """Return also the perplexity, e to the mean loss of a token."""
        found = super().finish(sums)
        return found | {"perplexity": math.exp(min(found["loss"], 700.0))}

    def describe(self) -> Any:
        if type(self) is not NextToken:
            return super().describe()
        return "next_token" if self.ignore == PADDING else f"next_token:{self.ignore}"

    def _each(self, output: Any, batch: Batch) -> tuple[Any, Any]:
        """Return the loss of every token (B, T), zero for padding, and which are real."""
        from torch.nn import functional as F

        loss = F.cross_entropy(output.mT, batch.y, reduction="none", ignore_index=self.ignore)
        return loss, batch.y != self.ignore
