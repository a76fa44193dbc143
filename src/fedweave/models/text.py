"""Models on sequences of tokens: logits at every position (next-token prediction), or for the sequence as a whole."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LSTM(nn.Module):
    """Embedding, LSTM layers, one linear layer on their outputs."""

    def __init__(self, tokens: int, classes: int, each: bool, embedding: int, hidden: int, layers: int):
        super().__init__()
        self.embedding = nn.Embedding(tokens, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)
        self.each = each

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(self.embedding(x))
        return self.head(out if self.each else out[:, -1])


class Transformer(nn.Module):
    """A decoder with causal attention: token and position embeddings, blocks that normalise first, a linear head."""

    def __init__(self, tokens: int, classes: int, each: bool, length: int, width: int, heads: int, layers: int):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self.each = each
        self.mask: Tensor
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        steps = x.shape[1]
        out = self.embedding(x) + self.position[:steps]
        for block in self.blocks:
            out = block(out, src_mask=self.mask[:steps, :steps], is_causal=True)
        return self.head(self.norm(out if self.each else out[:, -1]))


def lstm(shape: tuple[int, ...], classes: int, tokens: int, each: bool) -> nn.Module:
    """Embedding of 8, one LSTM layer of 128."""
    return LSTM(tokens, classes, each, embedding=8, hidden=128, layers=1)


def lstm_leaf(shape: tuple[int, ...], classes: int, tokens: int, each: bool) -> nn.Module:
    """LEAF's Shakespeare model: embedding of 8, two LSTM layers of 256."""
    return LSTM(tokens, classes, each, embedding=8, hidden=256, layers=2)


def transformer(shape: tuple[int, ...], classes: int, tokens: int, each: bool) -> nn.Module:
    """Two blocks of width 64 with four heads."""
    return Transformer(tokens, classes, each, shape[0], width=64, heads=4, layers=2)
