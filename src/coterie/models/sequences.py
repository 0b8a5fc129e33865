"""Networks that read whole numbers, the ids of characters or words, and name the next one.

What is read and what is named come from one vocabulary: it has as many entries as there are classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.core.errors import CoterieError

from ._parts import Shape


class NextTokenLSTM(nn.Module):
    """Embedding, LSTM layers, and a linear layer (with `narrow`: two, the first back to the embedding's width)."""

    def __init__(self, tokens: int, width: int, hidden: int, layers: int, *, narrow: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True)
        self.narrow: nn.Module = nn.Linear(hidden, width) if narrow else nn.Identity()
        self.last = nn.Linear(width if narrow else hidden, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the token behind the sequences [n, length]."""
        found: Tensor = self.last(self.narrow(self.lstm(self.embedding(x.long()))[0][:, -1]))
        return found


class NextTokenTransformer(nn.Module):
    """Two blocks of four heads that see the whole sequence, normalised first, with learnt positions."""

    def __init__(self, tokens: int, length: int, width: int = 96) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.last = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the token behind the sequences [n, length]."""
        found: Tensor = self.last(self.blocks(self.embedding(x.long()) + self.position)[:, -1])
        return found


def char_lstm(shape: Shape, classes: int) -> nn.Module:
    """LEAF's for Shakespeare: an embedding of 8, two layers of 256."""
    _sequence("char-lstm", shape)
    return NextTokenLSTM(classes, 8, 256, 2, narrow=False)


def word_lstm(shape: Shape, classes: int) -> nn.Module:
    """TensorFlow Federated's for Stack Overflow: an embedding of 96, one layer of 670, back to 96."""
    _sequence("word-lstm", shape)
    return NextTokenLSTM(classes, 96, 670, 1, narrow=True)


def char_transformer(shape: Shape, classes: int) -> nn.Module:
    """Our choice of a small transformer: there is no usual one."""
    return NextTokenTransformer(classes, _sequence("char-transformer", shape))


def _sequence(name: str, shape: Shape) -> int:
    if len(shape) != 1:
        raise CoterieError(
            f"Model {name!r} reads sequences of token ids, (length,), and the inputs are {tuple(shape)}; "
            "take a model for images."
        )
    return shape[0]
