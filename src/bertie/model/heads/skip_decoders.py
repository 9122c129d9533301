"""The decoders of skip-thoughts: they write the sentences before and after from the vector of a sentence (Kiros et al. 2015).

T  packed tokens    S  sentences    N  tokens that a decoder reads    D  hidden size    E  size of the word embeddings
V  vocabulary entries
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from bertie.base.contracts import Hidden, Loss, Targets
from bertie.model.encoders.gru import GruConfig, TimeSteps
from bertie.model.losses.chunked_loss import chunked_vocabulary_loss

# Of a sentence as the decoders read it, about that of a word embedding at the beginning. With 4, the decoders learn more slowly
# than without the sentence (dev/log/2026-11-28-skip-thoughts.md).
VECTOR_NORM = 1.0
FIRST_SHARE = 0.01  # initial weights of the vector, relative to those of words


def normalized(x_SD: Float[Tensor, "S D"]) -> Float[Tensor, "S D"]:
    """Return vectors as the decoders read them: with a mean of 0 and a norm of `VECTOR_NORM`.

    The encoder's states are small at the beginning and grow a hundredfold. Their size would decide how fast decoders learn.
    """
    size = x_SD.shape[1]
    return functional.layer_norm(x_SD, (size,), eps=1e-12) * (VECTOR_NORM / size**0.5)


class Decoder(nn.GRU):
    """torch's GRU, in which the weights of the vector begin near zero: training starts as if there were no vector.

    They are not zeros, so that the encoder has gradients at once.
    """

    weight_ih_l0: nn.Parameter

    def __init__(self, word_size: int, vector_size: int):
        self.word_size = word_size
        super().__init__(word_size + vector_size, word_size)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.weight_ih_l0.detach()[:, self.word_size :].mul_(FIRST_SHARE)


class SkipThoughtHead(nn.Module):
    """Two GRUs, one for the next sentence and one for the previous one. Both predict word by word.

    Besides the word before, each gate reads the vector of the encoded sentence at every step (section 2.1: the matrices C_z,
    C_r and C). A GRU whose input is the word and the vector, side by side, has these matrices. Its states begin with zeros and
    have the size of the word embeddings, whose matrix is the output matrix of both decoders. In the paper, the output matrix is
    separate, and the states are as large as the encoder's: with a small corpus, that is slower and learns less.
    """

    def __init__(self, config: GruConfig, word: nn.Embedding, blind: bool = False):
        """Create the decoders.

        Args:
            config: Configuration of the encoder.
            word: Its word embeddings.
            blind: Whether the decoders read zeros in place of the vector.
        """
        super().__init__()
        entries, width = word.weight.shape
        self.next = Decoder(width, config.hidden_size)
        self.previous = Decoder(width, config.hidden_size)
        self.bias = nn.Parameter(torch.zeros(entries))
        self.blind = blind
        self.word = (word,)  # in a tuple, so that it is not a submodule: the encoder owns and saves it
        self.products = 2 * width * (entries + 3 * (2 * width + config.hidden_size))

    def decoded(self, hidden: Hidden, targets: Targets) -> tuple[Float[Tensor, "N E"], Targets]:
        """Return the states of both decoders where they predict, and what they predict there.

        Args:
            hidden: States of all tokens of sentences, with their batch. Each sentence is a sequence of its own.
            targets: As `objectives.skip` makes them: `label` and `weight` are [T, 2].
        """
        batch = hidden.batch
        assert batch is not None, "the decoders read the tokens of the batch"
        ends, lengths = batch.ragged.cu_seqlens[1:], batch.ragged.lengths
        vectors_SD = normalized(hidden.last[targets.index][ends - 1])
        if self.blind:
            vectors_SD = vectors_SD * 0  # so that the encoder has gradients, which are zeros
        words_TE = self.word[0](batch.input_ids)
        owner_T = batch.ragged.owners(len(words_TE))
        states, labels, weights = [], [], []
        for column, (decoder, step) in enumerate(((self.next, -1), (self.previous, 1))):
            weight_T = targets.weight[:, column]
            weight_S = weight_T.new_zeros(len(lengths)).index_add(0, owner_T, weight_T)
            written = torch.nonzero(weight_S > 0)[:, 0]
            steps = TimeSteps.of(
                ends[written] - lengths[written], lengths[written] - 1
            )  # the last token is only predicted
            given_ND = vectors_SD[(written + step)[steps.sequence]]
            states.append(steps.run(decoder, torch.cat([words_TE[steps.token], given_ND.to(words_TE.dtype)], 1)))
            labels.append(targets.label[steps.token, column])
            weights.append(weight_T[steps.token])
        label_N = torch.cat(labels)
        return torch.cat(states), Targets(torch.arange(len(label_N)), label_N, torch.cat(weights))

    def logits(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P 2 V"]:
        """Return what both decoders make of a vector alone: their logits after one step without a word.

        It is no prediction, as every sentence begins with a token. `bertie convert` compares models by it.
        """
        none_PE = x_PD.new_zeros(len(x_PD), self.word[0].embedding_dim)
        read_1PE = torch.cat([none_PE, normalized(x_PD)], 1)[None]
        states_P2E = torch.stack([decoder(read_1PE)[0][0] for decoder in (self.next, self.previous)], 1)
        return functional.linear(states_P2E, self.word[0].weight, self.bias)

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        """Return the loss of both decoders, with one product with the vocabulary for all words of both."""
        states_NE, predicted = self.decoded(hidden, targets)
        return chunked_vocabulary_loss(states_NE, self.word[0].weight, predicted, self.bias)
