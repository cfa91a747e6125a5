"""A recurrent encoder-decoder with attention (Bahdanau et al. 2015).

Letters: B batch, S source words, T target words, E embedding, H hidden, V words.
"""

import math
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import aligner
import torch
from aligner import Aligner
from sentence_pairs import END, PAD, START
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attnlab.errors import BadInput
from attnlab.rng import generator
from attnlab.training.checkpoints import read_stored_model

SCORES = {
    "aligner.additive": aligner.additive,
    "aligner.dot": aligner.dot,
    "aligner.scaled_dot": aligner.scaled_dot,
}


class AlignerFactory(Protocol):
    """Makes the attention of the decoder."""

    def __call__(self, query_size: int, key_size: int) -> Aligner: ...


class Memory(NamedTuple):
    """The encoder's output, to which the decoder attends.

    Args:
        states: states of the encoder, (B, S, 2H).
        keys: the states projected for the scores, (B, S, A).
        may_attend: False at padding, (B, S).
    """

    states: Tensor
    keys: Tensor
    may_attend: Tensor


class Translator(nn.Module):
    """A bidirectional GRU encodes, and another GRU decodes with attention at every word.

    The constructor leaves PyTorch's default weights; `init_weights` draws the initial weights that
    all variants share.

    Args:
        attn: see `AlignerFactory`.
        vocab_size: V, words of both languages and special symbols.
        n_embd: E.
        hidden_size: H, of the decoder and of each direction of the encoder.
        dropout: on embeddings and before the output.

    Raises:
        ValueError: a size is not positive, or the dropout is not in [0, 1).
    """

    def __init__(
        self,
        attn: AlignerFactory,
        vocab_size: int,
        *,
        n_embd: int = 64,
        hidden_size: int = 64,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = {"vocab_size": vocab_size, "n_embd": n_embd, "hidden_size": hidden_size}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} = {size} must be at least 1")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout = {dropout} must be at least 0 and less than 1")
        E, H = n_embd, hidden_size
        self.vocab_size = vocab_size
        self.source = nn.Embedding(vocab_size, E)
        self.target = nn.Embedding(vocab_size, E)
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.GRU(E, H, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(H, H)
        self.attn = attn(query_size=H, key_size=2 * H)
        self.decoder = nn.GRUCell(E + 2 * H, H)
        self.readout = nn.Linear(E + 3 * H, E)
        self.head = nn.Linear(E, vocab_size)

    def forward(self, source: Tensor, given: Tensor) -> Tensor:
        """Logits of every next word under teacher forcing: (B, S), (B, T) -> (B, T, V)."""
        return self.head(self._decode(source, given)[0])

    def align(self, source: Tensor, given: Tensor) -> Tensor:
        """The attention weights for each predicted word: (B, S), (B, T) -> (B, T, S)."""
        return self._decode(source, given)[1]

    @torch.no_grad()
    def translate(self, source: Tensor, longest: int) -> Tensor:
        """The most likely word at each step: (B, S) -> ids (B, <= longest), `PAD` after `END`."""
        memory, state = self.encode(source)
        word = source.new_full((len(source),), START)
        ended = torch.zeros_like(word, dtype=torch.bool)
        words = []
        for _ in range(longest):
            embedded = self.target(word)
            context, state, _ = self.step(embedded, state, memory)
            logits = self.head(self._read(embedded, context, state))
            word = logits.argmax(-1).masked_fill(ended, PAD)
            ended = ended | (word == END)
            words.append(word)
            if bool(ended.all()):
                break
        return torch.stack(words, dim=1)

    def encode(self, source: Tensor) -> tuple[Memory, Tensor]:
        """Encode (B, S): the memory, and the initial state of the decoder (B, H)."""
        may_attend = source != PAD
        lengths = may_attend.sum(1).cpu()
        embedded = self.dropout(self.source(source))
        # Packed, so that the backward direction begins at the last word and not in the padding.
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        states, last = self.encoder(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])
        first = torch.tanh(self.bridge(last[1]))  # of the backward direction, at the first word
        return Memory(states, self.attn.keys(states), may_attend), first

    def step(
        self, embedded: Tensor, state: Tensor, memory: Memory
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Advance the decoder by one word.

        Args:
            embedded: embedding of the last word, (B, E).
            state: state of the decoder, (B, H), which is also the query.
            memory: see `encode`.

        Returns:
            context (B, 2H), the new state (B, H), and the weights (B, S).
        """
        context, pattern = self.attn(state, memory.keys, memory.states, memory.may_attend)
        return context, self.decoder(torch.cat((embedded, context), -1), state), pattern

    def _read(self, embedded: Tensor, context: Tensor, state: Tensor) -> Tensor:
        """The input of the output layer, for one word or all: (..., E)."""
        return self.dropout(torch.tanh(self.readout(torch.cat((embedded, context, state), -1))))

    def _decode(self, source: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the output layer (B, T, E), and the attention weights (B, T, S)."""
        memory, state = self.encode(source)
        embedded = self.dropout(self.target(given))
        contexts, states, patterns = [], [], []
        for word in embedded.unbind(1):
            context, state, pattern = self.step(word, state, memory)
            contexts.append(context)
            states.append(state)
            patterns.append(pattern)
        seen = self._read(embedded, torch.stack(contexts, 1), torch.stack(states, 1))
        return seen, torch.stack(patterns, 1)


@torch.no_grad()
def init_weights(net: Translator, seed: int) -> None:
    """Draw every parameter from (seed, its name), so that variants start with equal weights.

    Embeddings have variance 1, and biases are 0. Other weights are uniform within 1/sqrt(inputs),
    as in PyTorch's layers, except that the vector of the additive score is 1/sqrt(A).

    Args:
        net: the model, changed in place.
        seed: seed of the stream "weights".

    Raises:
        ValueError: a parameter has no rule.
    """
    for name, parameter in net.named_parameters():
        stream = generator(seed, f"weights/{name}")
        if name in ("source.weight", "target.weight"):
            parameter.copy_(torch.randn(parameter.shape, generator=stream))
        elif parameter.dim() == 2:
            bound = 1 / math.sqrt(parameter.shape[1])
            drawn = torch.rand(parameter.shape, generator=stream)
            parameter.copy_((2 * drawn - 1) * bound)
        elif name == "attn.score.v":
            parameter.fill_(len(parameter) ** -0.5)
        elif "bias" in name:
            parameter.zero_()
        else:
            raise ValueError(f"the parameter {name} of a translator has no rule for its start")


def load_translator(target: Path) -> tuple[Translator, tuple[str, ...]]:
    """The translator of a run directory or a checkpoint, in evaluation mode.

    The sizes and the name of the score are read from the file; nothing that it names is imported.

    Returns:
        the model on the CPU, and its vocabulary.

    Raises:
        BadInput: the file is missing, is damaged, or contains another model.
    """
    stored = read_stored_model(target)
    model, attn = (stored.recipe["config"][group] for group in ("model", "attn"))
    vocabulary = tuple(stored.recipe["alphabet"])
    try:
        E, H, A = model["n_embd"], model["hidden_size"], attn["size"]
        # Before anything of these sizes is allocated.
        for name, shape in (
            ("source.weight", (len(vocabulary), E)),
            ("bridge.weight", (H, H)),
            ("attn.query.weight", (A, H)),
        ):
            if stored.weights[name].shape != shape:
                raise ValueError(f"{name} has another size than its settings say")
        aligned = partial(Aligner, score=SCORES[attn["score"]], size=A)
        net = Translator(
            aligned, len(vocabulary), n_embd=E, hidden_size=H, dropout=model["dropout"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{stored.file} holds no translator: {error}") from error
    stored.fill(net)
    return net, vocabulary
