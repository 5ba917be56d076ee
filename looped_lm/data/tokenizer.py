r"""Byte-level BPE whose decoding is the exact inverse of its encoding.

Text is cut into pieces (`pieces.py`: words with the space before them, single digits, runs of other
signs), and BPE merges bytes inside pieces.

With `add_prefix_space` one space is put before a text, always, and decoding takes one away: the
first word is then spelled like every other, and " a" still differs from "a".

Differs from the paper's reference tokenizer: no NFKC and no changed spaces around newlines (both
lose text; NFKC is a cleaning step here), `min_frequency` reaches the trainer, the trainer reads
text and not raw JSON, and the specials are listed in `added_tokens`, so that `<mask>` in a prompt
is one token in any program that loads the file.
"""

from collections.abc import Iterable, Sequence
import itertools
import json
from typing import NamedTuple

from etils import epath
from jaxtyping import Int, Int8, Int32
import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from looped_lm.data import pieces, words
from looped_lm.errors import UserError

UNK, BOS, EOS, PAD, MASK = "<unk>", "<s>", "</s>", "<pad>", "<mask>"
NUM_SPECIAL = 16
SPECIALS = (UNK, BOS, EOS, PAD, MASK, *(f"<special_{i}>" for i in range(5, NUM_SPECIAL)))
SMALLEST_VOCABULARY = NUM_SPECIAL + 256  # The specials and every byte.
_PREPEND = {"type": "Prepend", "prepend": " "}


class Encoded(NamedTuple):
  """A text as tokens.

  Attributes:
    ids_T: Ids, none of them special.
    words_T: How many words (whitespace-separated runs, `str.split`) have their first character in
      each token: 0 or 1 in our own vocabularies. Sums to `len(text.split())`, always.
  """

  ids_T: Int32[np.ndarray, " T"]
  words_T: Int8[np.ndarray, " T"]


class Located(NamedTuple):
  """A text as tokens that know where they end.

  Attributes:
    ids_T: Ids, none of them special.
    end_T: The character of the text behind each token; where several tokens spell one character,
      it is behind that character for all of them.
  """

  ids_T: Int32[np.ndarray, " T"]
  end_T: Int32[np.ndarray, " T"]


class Tokenizer:
  """A tokenizer as the program uses it.

  Attributes:
    vocab_size: V.
    unk_id, bos_id, eos_id, pad_id, mask_id: Ids of the specials; 0 to 4 in our own vocabularies.
    special_ids: All ids that stand for no text.
    num_special: Ids below this are all special; 16 in our own vocabularies.
  """

  def __init__(self, core: tokenizers.Tokenizer):
    """Wraps a Hugging Face tokenizer; use `load` or `train`.

    Raises:
      UserError: One of the five specials is missing.
    """
    vocabulary = core.get_vocab(with_added_tokens=True)
    missing = [token for token in SPECIALS[:5] if token not in vocabulary]
    if missing:
      raise UserError(
        f"The tokenizer lacks the specials {missing}; it must know {list(SPECIALS[:5])}. "
        "Add them to its vocabulary, or train one with tokenizer.path=''."
      )
    # A file may ask for cut or padded text, and may list no specials although it knows them.
    core.no_truncation()
    core.no_padding()
    known = {token.content for token in core.get_added_tokens_decoder().values() if token.special}
    core.add_special_tokens([t for t in SPECIALS if t in vocabulary and t not in known])

    self._program = core
    self._corpus = tokenizers.Tokenizer.from_str(core.to_str())
    self._corpus.encode_special_tokens = True  # "<mask>" in a corpus is six characters of text.

    self.vocab_size = max(vocabulary.values()) + 1
    self.unk_id, self.bos_id, self.eos_id, self.pad_id, self.mask_id = (
      vocabulary[token] for token in SPECIALS[:5]
    )
    decoder = core.get_added_tokens_decoder()
    self.special_ids = frozenset(id for id, token in decoder.items() if token.special)
    self.num_special = next(i for i in range(self.vocab_size + 1) if i not in self.special_ids)
    self._special_V = np.zeros(self.vocab_size, bool)
    self._special_V[list(self.special_ids)] = True
    # In a byte-level vocabulary each character of a token is one byte of text.
    self._bytes_V = np.zeros(self.vocab_size, np.int64)
    for token, id in vocabulary.items():
      self._bytes_V[id] = len(token)
    spec = json.loads(core.to_str())
    self._prefix = " " if spec["normalizer"] == _PREPEND else ""
    ours = (
      spec["normalizer"] in (None, _PREPEND)
      and spec["pre_tokenizer"] == json.loads(_pre_tokenizer().__getstate__())
      and spec["model"]["type"] == "BPE"
      and spec["model"]["dropout"] is None
    )
    self._ascii = pieces.AsciiSpeller(core, prefix=self._prefix) if ours else None

  # ---- Files

  @classmethod
  def load(cls, path: str) -> "Tokenizer":
    """Reads a tokenizer.json, or the one in a folder; any that knows our five specials.

    Raises:
      UserError: There is no such file, it is no tokenizer, or it lacks a special.
    """
    file = epath.Path(path)
    file = file / "tokenizer.json" if file.is_dir() else file
    if not file.exists():
      raise UserError(
        f"tokenizer.path={path!r}: no such file. Give a tokenizer.json, or '' to train."
      )
    try:
      core = tokenizers.Tokenizer.from_str(file.read_text())
    except Exception as error:  # The library raises a bare Exception.
      raise UserError(f"tokenizer.path={path!r} is no tokenizer.json: {error}") from None
    return cls(core)

  def save(self, path: str) -> None:
    """Writes a tokenizer.json that any program with Hugging Face `tokenizers` loads."""
    epath.Path(path).write_text(self._program.to_str(pretty=True))

  def vocabulary(self) -> dict[str, int]:
    """Gives the id of every token, specials included."""
    return self._program.get_vocab(with_added_tokens=True)

  # ---- Text to ids

  def encode(self, text: str) -> Int32[np.ndarray, " T"]:
    """Gives the ids of a text; never a special, whatever the text says."""
    return self.encode_batch([text])[0].ids_T

  def encode_batch(self, texts: Sequence[str]) -> list[Encoded]:
    """Encodes many texts, on all cores.

    Raises:
      UserError: A text holds half a character (a lone surrogate), or a foreign tokenizer spells
        text with a special token.
    """
    texts = list(texts)
    plain = [self._ascii is not None and text.isascii() for text in texts]
    others = [text for text, is_plain in zip(texts, plain, strict=True) if not is_plain]
    try:
      found = iter(self._corpus.encode_batch_fast(others, add_special_tokens=False))
    except TypeError:
      _explain_surrogate(others)
      raise
    ids_N = [
      self._ascii.spell(text) if self._ascii and is_plain else next(found).ids
      for text, is_plain in zip(texts, plain, strict=True)
    ]
    counts_N = np.array([len(ids) for ids in ids_N], np.int64)
    ids_T = np.fromiter(itertools.chain.from_iterable(ids_N), np.int32, count=int(counts_N.sum()))
    ends_N = np.cumsum(counts_N)
    if self._special_V[ids_T].any():
      place = int(np.searchsorted(ends_N, np.argmax(self._special_V[ids_T]), side="right"))
      raise UserError(
        f"The tokenizer spells {texts[place][:40]!r} with a special token, which a corpus must not "
        "hold. Use a byte-level tokenizer, or train one with tokenizer.path=''."
      )
    words_T = self._count_words(texts, ids_T=ids_T, counts_N=counts_N)
    return [
      Encoded(ids_T[end - count : end], words_T[end - count : end])
      for count, end in zip(counts_N, ends_N, strict=True)
    ]

  def encode_with_specials(self, text: str) -> Int32[np.ndarray, " T"]:
    """Like `encode`, but a special's name, e.g. "<mask>", gives its id. For prompts, not corpora.

    Whitespace around `<mask>` belongs to it, so that "The <mask> sat" masks a word and its space.
    """
    try:
      return np.array(self._program.encode(text, add_special_tokens=False).ids, np.int32)
    except TypeError:
      _explain_surrogate([text])
      raise

  def locate_batch(self, texts: Sequence[str]) -> list[Located]:
    """Encodes many texts like `encode_batch`, and says where each token ends.

    Raises:
      UserError: A text holds half a character (a lone surrogate).
    """
    texts = list(texts)
    try:
      found = self._corpus.encode_batch(texts, add_special_tokens=False)
    except TypeError:
      _explain_surrogate(texts)
      raise
    return [
      Located(np.array(each.ids, np.int32), np.array([end for _, end in each.offsets], np.int32))
      for each in found
    ]

  def decode(self, ids: Sequence[int] | Int[np.ndarray, " T"]) -> str:
    """Gives the text of ids: the exact inverse of `encode`. Specials appear by name."""
    return self._program.decode([int(id) for id in ids], skip_special_tokens=False)

  def spell(self, id: int) -> str:
    """Gives the text of one token as it stands inside a text, so with the space before a word.

    A token that is a part of a character is the replacement character, U+FFFD.
    """
    token = self._program.id_to_token(id)
    assert token is not None, id
    return decoders.ByteLevel().decode([token])

  # ---- Words

  def _count_words(
    self,
    texts: list[str],
    *,
    ids_T: Int32[np.ndarray, " T"],
    counts_N: Int[np.ndarray, " N"],
  ) -> Int8[np.ndarray, " T"]:
    """Counts the words whose first character lies in each token of N texts laid end to end."""
    code_C = words.code_points(texts)
    length_N = np.array([len(text) for text in texts], np.int64)
    start_C = words.starts(code_C, length_N=length_N)
    bytes_C = words.utf8_lengths(code_C)

    # Where every byte of text is in exactly one token, positions follow from lengths alone.
    doc_of_C = np.repeat(np.arange(len(texts)), length_N)
    text_bytes_N = np.bincount(doc_of_C, weights=bytes_C, minlength=len(texts)).astype(np.int64)
    text_bytes_N += len(self._prefix) * (length_N > 0)
    doc_of_T = np.repeat(np.arange(len(texts)), counts_N)
    lengths_T = self._bytes_V[ids_T]
    token_bytes_N = np.bincount(doc_of_T, weights=lengths_T, minlength=len(texts))
    if not np.array_equal(token_bytes_N.astype(np.int64), text_bytes_N):
      return self._count_words_by_offsets(texts, ids_T=ids_T)
    place_C = np.cumsum(bytes_C) - bytes_C  # First byte of each character.
    if self._prefix:
      place_C += np.cumsum(length_N > 0)[doc_of_C]  # The spaces put before this text and earlier.
    token_W = np.searchsorted(np.cumsum(lengths_T), place_C[start_C], side="right")
    return np.bincount(token_W, minlength=len(ids_T)).astype(np.int8)

  def _count_words_by_offsets(
    self, texts: list[str], *, ids_T: Int32[np.ndarray, " T"]
  ) -> Int8[np.ndarray, " T"]:
    """The same for foreign tokenizers that change the text they read; slower."""
    words_T = np.zeros(len(ids_T), np.int64)
    base = 0
    encodings = self._corpus.encode_batch(texts, add_special_tokens=False)
    for text, found in zip(texts, encodings, strict=True):
      start_C = words.starts(words.code_points([text]), length_N=np.array([len(text)]))
      start_W = np.flatnonzero(start_C)
      if len(start_W) and not len(found):
        raise UserError(f"The tokenizer gives no token for {text[:40]!r}. Use a byte-level one.")
      # The first token that ends after the word's first character, else the last.
      end_T = np.maximum.accumulate([end for _, end in found.offsets] or [0])
      token_W = np.minimum(np.searchsorted(end_T, start_W, side="right"), max(len(found) - 1, 0))
      np.add.at(words_T, base + token_W, 1)
      base += len(found)
    if words_T.max(initial=0) > np.iinfo(np.int8).max:
      raise UserError("A token of the tokenizer holds more than 127 words. Use another tokenizer.")
    return words_T.astype(np.int8)


def train(
  texts: Iterable[str], *, vocab_size: int, min_frequency: int, add_prefix_space: bool
) -> Tokenizer:
  """Trains a vocabulary; the same texts in the same order give the same one.

  Args:
    texts: The training text, read once.
    vocab_size: V, the 16 specials and 256 bytes included.
    min_frequency: A pair is merged only if it occurs at least this often.
    add_prefix_space: See the module.

  Raises:
    UserError: `vocab_size` is below 272, or above what the text supports.
  """
  if vocab_size < SMALLEST_VOCABULARY:
    raise UserError(
      f"tokenizer.vocab_size={vocab_size} must be at least {SMALLEST_VOCABULARY}: "
      f"{NUM_SPECIAL} specials and 256 bytes."
    )
  if min_frequency < 1:
    raise UserError(f"tokenizer.min_frequency={min_frequency} must be at least 1.")
  core = tokenizers.Tokenizer(models.BPE())
  if add_prefix_space:
    core.normalizer = normalizers.Prepend(" ")
  core.pre_tokenizer = _pre_tokenizer()
  core.decoder = decoders.ByteLevel()
  if add_prefix_space:
    core.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size,
    min_frequency=min_frequency,
    special_tokens=[_special(token, add_prefix_space=add_prefix_space) for token in SPECIALS],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    max_token_length=pieces.LONGEST,
    show_progress=False,
  )
  core.train_from_iterator(_checked(texts), trainer=trainer)
  reached = core.get_vocab_size()
  if reached < vocab_size:
    raise UserError(
      f"tokenizer.vocab_size={vocab_size} is more than the text supports: it gives {reached} "
      f"tokens at tokenizer.min_frequency={min_frequency}. Use at most {reached}, or more text."
    )
  core.post_processor = processors.TemplateProcessing(
    single=f"{BOS} $A",
    pair=f"{BOS} $A {BOS} $B",
    special_tokens=[(BOS, core.token_to_id(BOS))],
  )
  return Tokenizer(core)


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
  return pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(tokenizers.Regex(pieces.PATTERN), behavior="isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )


def _special(token: str, *, add_prefix_space: bool) -> tokenizers.AddedToken:
  # The mask stands for a word and the space before it, which a word's token holds too. Text after a
  # special begins anew and gets a prefix space; the space it has already is then the mask's.
  return tokenizers.AddedToken(
    token,
    special=True,
    normalized=False,
    lstrip=token == MASK,
    rstrip=token == MASK and add_prefix_space,
  )


def _checked(texts: Iterable[str]) -> Iterable[str]:
  for text in texts:
    try:
      text.encode()
    except UnicodeEncodeError:
      _explain_surrogate([text])
    yield text


def _explain_surrogate(texts: Sequence[str]) -> None:
  for text in texts:
    for place, character in enumerate(text):
      if "\ud800" <= character <= "\udfff":
        raise UserError(
          f"Character {place} of {text[:40]!a} is half a character (a lone surrogate), which "
          "no UTF-8 text holds. Repair the text."
        )
