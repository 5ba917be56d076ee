"""Tokens: nothing lost, no special out of a corpus, every word counted once."""

import json
import subprocess
import sys

from hypothesis import example, given
from hypothesis import strategies as st
import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from looped_lm.data import pieces, words
from looped_lm.data import tokenizer as tokenizer_module
from looped_lm.data.tokenizer import SPECIALS, Tokenizer, train
from looped_lm.errors import UserError

TEXTS = ["The cat sat on the mat. It didn't see 12 dogs, <mask> or <s>!", "the dogs don't sit"] * 9
# Any text, and text made of what is likely to go wrong.
ANY = st.text() | st.lists(
  st.sampled_from(
    [
      *SPECIALS,
      " ",
      "  ",
      "\n",
      "\t",
      "\x1c",
      "\x85",
      "\u3000",
      "\u200b",
      "\x00",
      "é",
      "日本",
      "😀",
    ]
    + ["The", "don't", "I'll", "'s", "x" * 30, "!" * 30, "12", "e\u0301", "ﬁ", "’re", "a", "\r\n"]
  )
).map("".join)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "prefix_space"])
def tok(request):
  return train(TEXTS, vocab_size=300, min_frequency=2, add_prefix_space=request.param)


def spelled(tok, text):
  return [tok.decode([id]) for id in tok.encode(text)]


def test_a_token_is_spelled_as_it_stands_in_a_text(tok):
  text = "The cat sat, 12 dogs"
  assert "".join(tok.spell(int(id)) for id in tok.encode(text)).removeprefix(" ") == text
  assert " c" in [tok.spell(int(id))[:2] for id in tok.encode(text)]
  assert tok.spell(tok.mask_id) == "<mask>"
  assert tok.spell(int(tok.encode("日")[-1])) == "\ufffd"


@given(text=ANY)
def test_decoding_is_the_inverse_of_encoding(tok, text):
  assert tok.decode(tok.encode(text)) == text


@given(text=ANY)
def test_a_corpus_never_yields_a_special(tok, text):
  assert not tok.special_ids & set(tok.encode(f"{text}<mask>{text}").tolist())


@given(texts=st.lists(ANY, max_size=5))
def test_every_word_is_counted_once(tok, texts):
  for text, encoded in zip(texts, tok.encode_batch(texts), strict=True):
    assert encoded.words_T.sum() == len(text.split())
    assert len(encoded.words_T) == len(encoded.ids_T)
    assert encoded.words_T.max(initial=0) <= 1


@given(texts=st.lists(ANY, max_size=5))
def test_a_batch_equals_its_texts_one_by_one(tok, texts):
  for text, encoded in zip(texts, tok.encode_batch(texts), strict=True):
    np.testing.assert_array_equal(encoded.ids_T, tok.encode(text))
    np.testing.assert_array_equal(encoded.words_T, tok.encode_batch([text])[0].words_T)


ASCII = st.text(st.characters(max_codepoint=127)) | ANY.filter(str.isascii)


@given(text=ASCII | st.text("aZ09'st !.\n\t\x1c", max_size=60))
@example(text="A99 9! zero0it's09")
@example(text=f"{'x' * 60} {'!' * 60}{' ' * 60}")
def test_both_ways_to_cut_a_text_agree(text):
  split = pre_tokenizers.Split(tokenizers.Regex(pieces.PATTERN), behavior="isolated")
  assert [piece for piece, _ in split.pre_tokenize_str(text)] == pieces._ASCII.findall(text)
  assert all(len(piece) <= pieces.LONGEST + 1 for piece in pieces._ASCII.findall(text))


@given(text=ASCII)
def test_ascii_from_memory_equals_the_library(tok, text):
  library = tokenizers.Tokenizer.from_str(tok._program.to_str())
  library.encode_special_tokens = True
  assert tok.encode(text).tolist() == library.encode(text, add_special_tokens=False).ids


def test_words_start_at_the_token_of_their_first_character(tok):
  encoded = tok.encode_batch(["", "The  zebra\u3000sat", "no"])[1]
  shown = [
    (tok._program.id_to_token(id), int(count))
    for id, count in zip(encoded.ids_T, encoded.words_T, strict=True)
  ]
  starts = [token for token, count in shown if count]
  assert [token.lstrip("Ġ")[:1] for token in starts] == ["T", "z", "s"]
  assert sum(count for _, count in shown) == 3


def test_whitespace_is_what_python_says():
  assert list(words.WHITESPACE) == [c for c in range(sys.maxunicode + 1) if chr(c).isspace()]


def test_digits_stand_alone_and_spaces_go_with_the_word():
  tok = train(TEXTS, vocab_size=307, min_frequency=1, add_prefix_space=False)
  assert spelled(tok, "the dogs 12") == ["the", " dogs", " 1", "2"]


def test_a_prefix_space_spells_the_first_word_like_the_others():
  tok = train(TEXTS, vocab_size=307, min_frequency=1, add_prefix_space=True)
  the, *_, the_again = tok.encode("the dogs don't the").tolist()
  assert the == the_again
  assert tok.decode(tok.encode(" a")) == " a"
  assert tok.decode(tok.encode("a")) == "a"


def test_special_ids(tok):
  ids = (tok.unk_id, tok.bos_id, tok.eos_id, tok.pad_id, tok.mask_id)
  assert ids == (0, 1, 2, 3, 4)
  assert tok.special_ids == set(range(16))
  assert (tok.num_special, tok.vocab_size) == (16, 300)


@pytest.mark.parametrize("special", SPECIALS)
def test_every_special_encodes_as_itself_when_asked(tok, special):
  assert tok.encode_with_specials(special).tolist() == [SPECIALS.index(special)]
  assert tok.decode([SPECIALS.index(special)]) == special


def test_a_mask_in_a_prompt_leaves_its_neighbours_as_they_are(tok):
  prompt = tok.encode_with_specials("The cat <mask> sat").tolist()
  assert prompt == [
    *tok.encode("The cat"),
    4,
    *tok.encode("The cat sat")[len(tok.encode("The cat")) :],
  ]


def test_lone_surrogates_are_refused(tok):
  for use in (tok.encode, tok.encode_with_specials):
    with pytest.raises(UserError, match=r"Character 2 of .* is half a character"):
      use("ab\ud800")
  with pytest.raises(UserError, match="half a character"):
    train(["\udfff"], vocab_size=300, min_frequency=1, add_prefix_space=False)


# ---- Training


def test_a_vocabulary_that_the_text_does_not_support_names_the_size_reached():
  with pytest.raises(UserError, match=r"vocab_size=5000 is more .* it gives (\d+) tokens") as error:
    train(TEXTS, vocab_size=5000, min_frequency=1, add_prefix_space=True)
  reached = int(str(error.value).split("Use at most ")[1].split(",")[0])
  assert train(TEXTS, vocab_size=reached, min_frequency=1, add_prefix_space=True)
  with pytest.raises(UserError, match="at least 272"):
    train(TEXTS, vocab_size=271, min_frequency=1, add_prefix_space=True)
  with pytest.raises(UserError, match="at least 1"):
    train(TEXTS, vocab_size=300, min_frequency=0, add_prefix_space=True)


def test_min_frequency_reaches_the_trainer():
  with pytest.raises(UserError, match=r"it gives 272 tokens at tokenizer\.min_frequency=99"):
    train(TEXTS, vocab_size=300, min_frequency=99, add_prefix_space=False)


def test_training_repeats_itself_in_another_process():
  program = (
    "from looped_lm.data import generated_english as g, tokenizer as t; import itertools;"
    "texts = list(itertools.islice(g.passages(seed=3), 300));"
    "tok = t.train(texts, vocab_size=500, min_frequency=2, add_prefix_space=True);"
    "print(tok._program.to_str())"
  )
  outputs = {
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    for _ in range(2)
  }
  assert len(outputs) == 1
  assert json.loads(outputs.pop())["model"]["merges"]


# ---- Files


def test_a_saved_file_loads_here_and_in_the_plain_library(tok, tmp_path):
  file = tmp_path / "tokenizer.json"
  tok.save(str(file))
  text = "The cat didn't <mask> sit. é\n 12"
  for path in (file, tmp_path):
    np.testing.assert_array_equal(Tokenizer.load(str(path)).encode(text), tok.encode(text))
  plain = tokenizers.Tokenizer.from_file(str(file))
  assert [token["content"] for token in json.loads(file.read_text())["added_tokens"]] == [*SPECIALS]
  found = plain.encode("The cat <mask> sat")
  assert found.ids == [1, *tok.encode_with_specials("The cat <mask> sat")]
  pair = plain.encode("The cat", "sat").ids
  assert pair == [1, *tok.encode("The cat"), 1, *tok.encode("sat")]
  # Scoring by spans needs offsets that end where the text of a token ends.
  found = plain.encode("The cat sat")
  assert found.offsets[0] == (0, 0)
  assert found.offsets[-1][1] == 11
  assert [end for _, end in found.offsets] == sorted(end for _, end in found.offsets)


def foreign(vocabulary, *, merges=(), normalizer=None):
  core = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
  core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  if normalizer:
    core.normalizer = normalizer
  return core


def bytes_from(start):
  return {sign: start + i for i, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def test_a_foreign_file_may_keep_its_specials_elsewhere_and_unlisted(tmp_path):
  special = {"</s>": 256, "<pad>": 257, "<mask>": 258, "<s>": 259, "<unk>": 260}
  core = foreign({**bytes_from(0), **special}, normalizer=normalizers.NFKC())
  core.enable_truncation(3)
  core.enable_padding(length=9)
  core.save(str(tmp_path / "t.json"))
  tok = Tokenizer.load(str(tmp_path / "t.json"))
  assert (tok.bos_id, tok.mask_id, tok.unk_id, tok.num_special) == (259, 258, 260, 0)
  assert tok.special_ids == set(special.values())
  assert len(tok.encode("abcdefgh")) == len(tok.encode_with_specials("abcdefgh")) == 8
  assert tok.encode_with_specials("a<mask>").tolist() == [*tok.encode("a"), 258]
  # NFKC turns one character into several, so words are found by offsets.
  for text in ("ab ﬁ ２ cd\u00a0ef", "a <mask> b", "\u2003", "№ №"):
    assert tok.encode_batch(["xx", text])[1].words_T.sum() == len(text.split()), text


def test_a_foreign_token_may_hold_many_words(tmp_path):
  core = tokenizers.Tokenizer(
    models.WordLevel({**{s: i for i, s in enumerate(SPECIALS[:5])}, "a b c": 5}, unk_token="<unk>")
  )
  core.save(str(tmp_path / "t.json"))
  tok = Tokenizer.load(str(tmp_path / "t.json"))
  assert tok.encode_batch(["a b c"])[0].words_T.tolist() == [3]
  with pytest.raises(UserError, match="'other' with a special token"):
    tok.encode("other")


def test_files_that_do_not_fit_are_refused(tmp_path):
  with pytest.raises(UserError, match="no such file"):
    Tokenizer.load(str(tmp_path / "absent.json"))
  (tmp_path / "bad.json").write_text("{}")
  with pytest.raises(UserError, match=r"is no tokenizer\.json"):
    Tokenizer.load(str(tmp_path / "bad.json"))
  foreign({**bytes_from(2), "<s>": 0, "<pad>": 1}).save(str(tmp_path / "t.json"))
  with pytest.raises(UserError, match=r"lacks the specials \['<unk>', '</s>', '<mask>'\]"):
    Tokenizer.load(str(tmp_path / "t.json"))


def test_the_byte_alphabet_is_the_librarys():
  assert set(pieces.byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())
  assert 16 + len(pieces.byte_alphabet()) == tokenizer_module.SMALLEST_VOCABULARY
