"""How likely a model finds a text: the log-probability of its last characters, given the rest.

Three ways, each reading `<s>` and the text:

| backend | who sees whom | token i is predicted | as trained by |
|---|---|---|---|
| causal | what came before | at i - 1, by all that came before it | clm |
| mntp | everybody | at i - 1, with token i alone masked | mntp |
| mlm | everybody | at i, with token i alone masked | a masked language model |

A text's score is the sum over its scored tokens, in nats. Equal texts are computed once.
Logits and log-softmax are in float32 and the sum is in float64, whatever the model computes in.
"""

from collections.abc import Iterator, Sequence
import dataclasses

from jaxtyping import Float, Int
import numpy as np

from looped_lm.errors import UserError
from looped_lm.evals.querying import Fill, Table, ask
from looped_lm.types import Params, Subject

BACKENDS = ("causal", "mntp", "mlm")
# Two float32 log-probabilities of a token closer than this, relative, count as one.
_SAME = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passage:
  """A text of which the end is scored.

  Attributes:
    text: The whole text.
    start: First scored character: tokens that end behind it are scored. 0 scores all.
    where: File and line it comes from, for messages.
  """

  text: str
  start: int = 0
  where: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores:
  """What the passages got.

  Attributes:
    nats_LN: Log-probability of each passage's scored tokens, read after each of L loops.
    tokens_N: How many tokens were scored.
    indifferent_L: True where every scored token of all passages has the same probability: the
      model says nothing, and a sum would merely count tokens.
  """

  nats_LN: Float[np.ndarray, "L N"]
  tokens_N: Int[np.ndarray, " N"]
  indifferent_L: tuple[bool, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scorer:
  """Scores texts in one way.

  Attributes:
    subject: The model, its tokenizer and the devices.
    backend: One of `BACKENDS`.
  """

  subject: Subject
  backend: str

  @property
  def loops(self) -> tuple[int, ...]:
    """Loops after which texts are read out, the model's own number last."""
    own = self.subject.model.num_loops
    return (*sorted(set(self.subject.loops) - {own}), own)

  def score(self, params: Params, passages: Sequence[Passage]) -> Scores:
    """Scores passages.

    Raises:
      UserError: A passage has no token to score, a text is longer than the model can read, or a
        log-probability is not finite.
    """
    ids, first_P, row_P = self._encode(passages)
    count_P = np.array([len(ids[row]) for row in row_P]) - first_P
    for passage, count in zip(passages, count_P, strict=True):
      if count < 1:
        raise UserError(
          f"{passage.where or repr(passage.text[:60])}: there is no token to score behind "
          f"character {passage.start}; an option must not be empty."
        )
    return self._sums(params, ids, first_P=first_P, row_P=row_P)

  def score_ids(self, params: Params, ids: Sequence[Int[np.ndarray, " T"]]) -> Scores:
    """Scores all tokens of sequences that begin with `<s>` and have at least one more.

    Raises:
      UserError: As `score`.
    """
    ones = np.ones(len(ids), np.int64)
    return self._sums(params, list(ids), first_P=ones, row_P=np.arange(len(ids)))

  def ask(
    self,
    params: Params,
    ids: Sequence[Int[np.ndarray, " T"]],
    *,
    read_N: Int[np.ndarray, " N"],
    target_N: Int[np.ndarray, " N"],
  ) -> Float[np.ndarray, "L N"]:
    """Log-probability of one token at one position of each sequence, given as it is.

    Args:
      params: The model's parameters.
      ids: Sequences, their `<s>` and masks included.
      read_N: Position that is read out.
      target_N: The token asked for there.

    Raises:
      UserError: As `score`.
    """
    table = Table(ids)

    def fill(index_M, length):
      tokens_MT = table.rows(index_M, length, pad=self.subject.vocabulary.pad_id)
      return tokens_MT, read_N[index_M, None], target_N[index_M, None]

    nats_LN = np.zeros((len(self.loops), len(ids)), np.float32)
    for index_M, nats_LMK in self._asked(params, table.length_S, fill):
      nats_LN[:, index_M] = nats_LMK[:, :, 0]
    self._stop_if_not_finite(nats_LN, np.arange(len(ids) + 1), ids)
    return nats_LN

  # ---- Text to rows

  def _sums(
    self,
    params: Params,
    ids: list[np.ndarray],
    *,
    first_P: Int[np.ndarray, " P"],
    row_P: Int[np.ndarray, " P"],
  ) -> Scores:
    """Scores, for each of P passages, the tokens of a sequence from its first scored one."""
    # A sequence's tokens are scored from the earliest one that a passage asks for.
    length_S = np.array([len(each) for each in ids])
    first_S = length_S.copy()
    np.minimum.at(first_S, row_P, first_P)
    offset_S = np.concatenate([[0], np.cumsum(length_S - first_S)])
    if self.backend == "causal":
      nats_LF = self._all_tokens(params, ids, length_S, first_S, offset_S)
    else:
      row_F = np.repeat(np.arange(len(ids)), length_S - first_S)
      place_F = np.arange(offset_S[-1]) - offset_S[row_F] + first_S[row_F]
      nats_LF = self._masked_tokens(params, ids, row_F, place_F)
    self._stop_if_not_finite(nats_LF, offset_S, ids)

    begin_P = offset_S[row_P] + first_P - first_S[row_P]
    edges = np.stack([begin_P, offset_S[row_P + 1]], axis=1).reshape(-1)
    padded_LF = np.pad(nats_LF.astype(np.float64), [(0, 0), (0, 1)])
    return Scores(
      nats_LN=np.add.reduceat(padded_LF, edges, axis=1)[:, ::2],
      tokens_N=length_S[row_P] - first_P,
      indifferent_L=tuple(indifferent(nats_F) for nats_F in nats_LF),
    )

  def _encode(
    self, passages: Sequence[Passage]
  ) -> tuple[list[np.ndarray], Int[np.ndarray, " P"], Int[np.ndarray, " P"]]:
    """Distinct sequences, and each passage's first scored token and sequence."""
    texts = list({passage.text: None for passage in passages})
    found = dict(zip(texts, self.subject.tokenizer.locate_batch(texts), strict=True))
    row_of = {text: row for row, text in enumerate(texts)}
    bos = np.array([self.subject.vocabulary.bos_id], np.int32)
    ids = [np.concatenate([bos, located.ids_T]) for located in found.values()]
    # Ends never decrease, so the tokens that end behind a character are the last ones.
    first_P = [1 + int(np.sum(found[each.text].end_T <= each.start)) for each in passages]
    row_P = [row_of[each.text] for each in passages]
    return ids, np.array(first_P, np.int64), np.array(row_P, np.int64)

  def _all_tokens(
    self,
    params: Params,
    ids: list[np.ndarray],
    length_S: Int[np.ndarray, " S"],
    first_S: Int[np.ndarray, " S"],
    offset_S: Int[np.ndarray, " S1"],
  ) -> Float[np.ndarray, "L F"]:
    """Every token from what came before it: one row per sequence."""
    table = Table(ids)

    def fill(index_M, length):
      tokens_MT = table.rows(index_M, length, pad=self.subject.vocabulary.pad_id)
      read_MT = np.broadcast_to(np.arange(length, dtype=np.int32), tokens_MT.shape)
      return tokens_MT, read_MT, np.roll(tokens_MT, -1, axis=1)

    nats_LF = np.zeros((len(self.loops), offset_S[-1]), np.float32)
    for index_M, nats_LMT in self._asked(params, length_S, fill):
      count_M = length_S[index_M] - first_S[index_M]
      row_G = np.repeat(np.arange(len(index_M)), count_M)
      nth_G = np.arange(len(row_G)) - np.repeat(np.cumsum(count_M) - count_M, count_M)
      place_G = nth_G + first_S[index_M][row_G] - 1
      nats_LF[:, offset_S[index_M][row_G] + nth_G] = nats_LMT[:, row_G, place_G]
    return nats_LF

  def _masked_tokens(
    self,
    params: Params,
    ids: list[np.ndarray],
    row_F: Int[np.ndarray, " F"],
    place_F: Int[np.ndarray, " F"],
  ) -> Float[np.ndarray, "L F"]:
    """Each token from all others: one row per token, with that token masked."""
    table = Table(ids)
    shift = 1 if self.backend == "mntp" else 0
    vocabulary = self.subject.vocabulary

    def fill(index_M, length):
      place_M = place_F[index_M]
      tokens_MT = table.rows(row_F[index_M], length, pad=vocabulary.pad_id)
      each = np.arange(len(index_M))
      target_M = tokens_MT[each, place_M]
      tokens_MT[each, place_M] = vocabulary.mask_id
      return tokens_MT, (place_M - shift)[:, None], target_M[:, None]

    nats_LF = np.zeros((len(self.loops), len(row_F)), np.float32)
    for index_M, nats_LMK in self._asked(params, table.length_S[row_F], fill):
      nats_LF[:, index_M] = nats_LMK[:, :, 0]
    return nats_LF

  def _asked(
    self, params: Params, length_N: Int[np.ndarray, " N"], fill: Fill
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    causal = self.backend == "causal"
    return ask(self.subject, params, length_N, fill, causal=causal, loops=self.loops)

  def _stop_if_not_finite(
    self,
    nats_LF: Float[np.ndarray, "L F"],
    offset_S: Int[np.ndarray, " S1"],
    ids: Sequence[np.ndarray],
  ) -> None:
    bad_F = np.flatnonzero(~np.isfinite(nats_LF).all(axis=0))
    if not len(bad_F):
      return
    row = int(np.searchsorted(offset_S, bad_F[0], side="right")) - 1
    text = self.subject.tokenizer.decode(ids[row][1:])
    raise UserError(
      f"The model gives {text[:60]!r} a log-probability that is not finite "
      f"({len(bad_F)} of {nats_LF.shape[1]} tokens). Its weights are broken; no score is given."
    )


def indifferent(nats_F: Float[np.ndarray, " F"]) -> bool:
  """Whether several tokens all got the same log-probability: the model says nothing."""
  spread = float(nats_F.max() - nats_F.min())
  return len(nats_F) > 1 and spread <= _SAME * abs(float(nats_F.min()))
