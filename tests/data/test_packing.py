from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from looped_lm.data import packing
from looped_lm.data.rows import ArrayWriter, Rows
from looped_lm.errors import UserError

BOS, PAD = 1, 3
DOCUMENTS = st.lists(st.integers(0, 40), min_size=1, max_size=30)
RAGGED = st.tuples(DOCUMENTS, st.integers(8, 20), st.integers(0, 3))
BOTH = pytest.mark.parametrize("how", packing.PACKINGS)


def rows_of(lengths, *, how, seq_len=8, seed=0, words=None):
  """Documents whose tokens are numbered through from 16, packed."""
  tokens_S = np.arange(16, 16 + sum(lengths), dtype=np.uint16)
  return Rows.build(
    packing.pack(np.array(lengths), seq_len=seq_len, packing=how, seed=seed),
    tokens_S=tokens_S,
    words_S=np.ones(len(tokens_S), np.int8) if words is None else words,
    seq_len=seq_len,
    bos_id=BOS,
    pad_id=PAD,
  )


def picture(rows):
  """Draws rows: `<` is `<s>`, letters are the corpus's tokens in their order, `.` is padding."""
  tokens_NT, segments_NT = rows.gather(np.arange(rows.num_rows))
  names = {BOS: "<", PAD: "."} | {16 + i: chr(ord("a") + i) for i in range(26)}
  drawn = "\n".join("".join(names[int(t)] for t in row) for row in tokens_NT)
  segments = "\n".join("".join(map(str, row)) for row in segments_NT)
  return drawn, segments


def pieces_of(rows):
  """Reads the pieces back from the rows, as lists of corpus tokens, left to right."""
  tokens_NT, segments_NT = rows.gather(np.arange(rows.num_rows))
  pieces = []
  for tokens_T, segments_T in zip(tokens_NT, segments_NT, strict=True):
    assert (tokens_T[segments_T == 0] == PAD).all()
    assert (np.diff((segments_T == 0).astype(int)) >= 0).all(), "padding is at the end"
    for segment in range(1, segments_T.max() + 1):
      inside = tokens_T[segments_T == segment]
      assert inside[0] == BOS
      assert len(inside) > 1
      pieces.append(inside[1:].tolist())
  return pieces


def test_documents_fill_rows_and_go_on_behind_a_new_start():
  # Seed 1 leaves these three documents in their order.
  drawn, segments = picture(rows_of([3, 6, 2], how="documents", seed=1))
  assert drawn == "<abc<def\n<ghi<jk."
  assert segments == "11112222\n11112220"


def test_a_single_free_position_stays_empty():
  drawn, _ = picture(rows_of([6, 4], how="documents", seed=1))
  assert drawn == "<abcdef.\n<ghij..."


def test_lines_stay_whole_and_the_first_misfit_closes_the_row():
  rows = rows_of([8, 1, 2, 5], how="lines", seed=2)
  drawn, segments = picture(rows)
  assert drawn == "<i<lmnop\n<jk<gh..\n<abcdef."
  assert segments == "11222222\n11122200\n11111110"


@BOTH
@given(RAGGED)
def test_every_token_is_in_one_place_per_epoch(how, ragged):
  lengths, seq_len, seed = ragged
  rows = rows_of(lengths, how=how, seq_len=seq_len, seed=seed)
  pieces = pieces_of(rows) if rows.num_rows else []
  assert sorted([token for piece in pieces for token in piece]) == list(
    range(16, 16 + sum(lengths))
  )
  document = np.repeat(np.arange(len(lengths)), lengths)
  for piece in pieces:
    assert piece == list(range(piece[0], piece[0] + len(piece))), "tokens of a piece are a run"
    assert len({int(document[token - 16]) for token in piece}) == 1, "a piece is of one document"


@given(RAGGED)
def test_documents_keep_their_order_and_waste_one_position_at_most(ragged):
  lengths, seq_len, seed = ragged
  rows = rows_of(lengths, how="documents", seq_len=seq_len, seed=seed)
  pieces = pieces_of(rows) if rows.num_rows else []
  read = np.array([token for piece in pieces for token in piece], int) - 16
  document = np.repeat(np.arange(len(lengths)), lengths)[read]
  assert (np.diff(read)[np.diff(document) == 0] == 1).all(), "no document is interleaved"
  _, segments_NT = rows.gather(np.arange(rows.num_rows))
  assert ((segments_NT[:-1] == 0).sum(1) <= 1).all()


@given(RAGGED)
def test_lines_are_cut_as_said_and_packed_next_fit(ragged):
  lengths, seq_len, seed = ragged
  most = seq_len - 2
  rows = rows_of(lengths, how="lines", seq_len=seq_len, seed=seed)
  sizes = sorted(map(len, pieces_of(rows))) if rows.num_rows else []
  assert sizes == sorted(min(most, n - at) for n in lengths for at in range(0, n, most))
  tokens_NT, segments_NT = rows.gather(np.arange(rows.num_rows))
  for row in range(rows.num_rows - 1):
    opening = (segments_NT[row + 1] == 1).sum()
    assert (segments_NT[row] == 0).sum() < opening, "the next row's first piece did not fit"


@BOTH
@given(RAGGED, st.data())
def test_words_count_where_they_begin_and_sum_to_the_corpus(how, ragged, data):
  lengths, seq_len, seed = ragged
  words = np.array(
    data.draw(st.lists(st.integers(0, 2), min_size=sum(lengths), max_size=sum(lengths))), np.int8
  )
  rows = rows_of(lengths, how=how, seq_len=seq_len, seed=seed, words=words)
  assert rows.words_N.sum() == words.sum()
  assert rows.tokens_N.sum() == sum(lengths)
  for row in range(rows.num_rows):
    tokens_BT, segments_BT = rows.gather(np.array([row]))
    corpus = tokens_BT[(segments_BT > 0) & (tokens_BT != BOS)] - 16
    assert rows.tokens_N[row] == len(corpus)
    assert rows.words_N[row] == words[corpus].sum()


@BOTH
def test_the_seed_decides_the_shuffle(how):
  same = [picture(rows_of([5, 3, 4, 6, 2], how=how, seed=seed)) for seed in (0, 0, 1)]
  assert same[0] == same[1]
  assert same[0] != same[2]


@BOTH
def test_rows_come_in_the_order_they_are_asked_for(how):
  rows = rows_of([9, 3, 7, 1, 8], how=how)
  tokens_NT, segments_NT = rows.gather(np.arange(rows.num_rows))
  asked = np.array([2, 0, 2])
  tokens_BT, segments_BT = rows.gather(asked)
  assert (tokens_BT == tokens_NT[asked]).all()
  assert (segments_BT == segments_NT[asked]).all()
  assert tokens_BT.dtype == segments_BT.dtype == np.int32
  assert rows.gather(np.array([], int))[0].shape == (0, 8)


@BOTH
def test_saved_rows_are_the_rows(how, tmp_path):
  rows = rows_of([9, 3, 7], how=how)
  with ArrayWriter(tmp_path / "tokens.npy", np.uint16) as writer:
    writer.append(rows.tokens_S[:4])
    writer.append(rows.tokens_S[4:])
  rows.save(tmp_path)
  loaded = Rows.load(tmp_path, seq_len=8, bos_id=BOS, pad_id=PAD)
  assert isinstance(loaded.tokens_S, np.memmap)
  assert picture(loaded) == picture(rows)
  assert (loaded.words_N == rows.words_N).all()


@pytest.mark.parametrize(
  ("settings", "said"),
  [
    ({"seq_len": 7, "packing": "lines"}, "seq_len=7 must be at least 8"),
    ({"seq_len": 8, "packing": "line"}, "packing='line' is none of .'lines', 'documents'."),
  ],
)
def test_settings_that_cannot_work_are_refused(settings, said):
  with pytest.raises(UserError, match=said):
    packing.pack(np.array([3]), seed=0, **settings)
