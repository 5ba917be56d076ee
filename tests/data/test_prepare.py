import json
import pathlib
import random
import types

import numpy as np
import pytest

from looped_lm.data import building, clean, corpus, folders
from looped_lm.data import prepare as preparing
from looped_lm.data.prepare import load_prepared, prepare
from looped_lm.data.tokenizer import Encoded
from looped_lm.errors import UserError

VOCABULARY = "the\na\ndog\ncat\nsees\nruns\nto\nfrom\nhouse\nand\n漢字\n🙂\n12".splitlines()


def sentences(count, *, seed):
  rng = random.Random(seed)
  return [f"{i} " + " ".join(rng.choices(VOCABULARY, k=rng.randint(1, 30))) for i in range(count)]


@pytest.fixture
def raw(tmp_path):
  path = tmp_path / "raw" / "corpus.txt"
  path.parent.mkdir()
  path.write_text("\n".join(sentences(300, seed=0)) + "\n")
  return path


def settings(raw, **changed):
  data = {
    "paths": (str(raw),),
    "document": "line",
    "text_field": "",
    "cleaning": (),
    "prepared_dir": str(raw.parents[1] / "prepared"),
    "packing": "lines",
    "seq_len": 16,
    "validation_fraction": 0.1,
    "validation_paths": (),
  }
  assert set(changed) <= set(data)
  return data | changed


TOKENIZER = {"path": "", "vocab_size": 300, "min_frequency": 2, "add_prefix_space": True}


def run(data, *, tokenizer=TOKENIZER, seed=0, **more):
  return prepare(data, tokenizer, seed=seed, progress=lambda line: None, **more)


def stored(prepared, split="paths"):
  return [text for texts in corpus.read(prepared.directory, split) for text in texts]


def prepared_names(data):
  return sorted(path.name for path in pathlib.Path(data["prepared_dir"]).glob("*"))


# ---- What comes out


@pytest.mark.parametrize("packing", ["lines", "documents"])
def test_every_word_and_token_of_the_text_is_prepared_once(packing, raw, monkeypatch):
  monkeypatch.setattr(corpus, "LINES_PER_RECORD", 70)  # Several records, the last one short.
  prepared = run(settings(raw, packing=packing))
  texts = raw.read_text().splitlines()
  assert stored(prepared) == texts
  encoded = [prepared.tokenizer.encode(text) for text in texts]
  held, trained = prepared.validation, prepared.train
  # The two token arrays together hold each document's tokens, in the order of the text.
  rest = {"train": trained.tokens_S.tolist(), "validation": held.tokens_S.tolist()}
  words = {"train": 0, "validation": 0}
  for ids, text in zip(encoded, texts, strict=True):
    split = "train" if rest["train"][: len(ids)] == ids.tolist() else "validation"
    assert rest[split][: len(ids)] == ids.tolist()
    rest[split] = rest[split][len(ids) :]
    words[split] += len(text.split())
  assert rest == {"train": [], "validation": []}
  for split, rows in (("train", trained), ("validation", held)):
    facts = prepared.report["splits"][split]
    assert rows.words_N.sum() == words[split] == facts["words"]
    assert rows.tokens_N.sum() == len(rows.tokens_S) == facts["tokens"]
    tokens_NT, segments_NT = rows.gather(np.arange(rows.num_rows))
    corpus_ids = tokens_NT[(segments_NT > 0) & (tokens_NT >= prepared.tokenizer.num_special)]
    assert sorted(corpus_ids) == sorted(rows.tokens_S)
    assert facts["fill_fraction"] == (segments_NT > 0).mean()
    assert facts["token_fraction"] == len(rows.tokens_S) / tokens_NT.size
    assert facts["rows"] == rows.num_rows
  assert prepared.report["splits"]["validation"]["documents"] == 30
  assert prepared.unigram_V.tolist() == np.bincount(trained.tokens_S, minlength=300).tolist()
  assert trained.tokens_S.dtype == np.uint16
  assert isinstance(trained.tokens_S, np.memmap)


def test_the_held_out_documents_depend_on_the_text_alone(raw):
  texts = raw.read_text().splitlines()
  first = run(settings(raw))
  other = raw.parent / "shuffled.txt"
  other.write_text("\n".join(random.Random(1).sample(texts, len(texts))))
  second = run(settings(other), seed=5)

  def held(prepared):
    tokenizer = prepared.tokenizer
    return sorted(tokenizer.decode(prepared.validation.tokens_S).split())

  assert held(first) == held(second)


def test_equal_texts_are_on_one_side(raw):
  texts = sentences(60, seed=3)
  raw.write_text("\n".join(texts * 5))
  prepared = run(settings(raw))
  assert prepared.report["splits"]["validation"]["documents"] == 6 * 5
  assert prepared.report["validation_texts_also_in_training"] == 0


def test_a_small_fraction_holds_at_least_one_document_out(raw):
  prepared = run(settings(raw, validation_fraction=0.001))
  assert prepared.report["splits"]["validation"]["documents"] == 1


def test_validation_paths_are_held_out_whole_and_train_no_tokenizer(raw):
  held = raw.parent / "held.txt"
  texts = raw.read_text().splitlines()
  held.write_text("\n".join(["zyzzyva zyzzyva zyzzyva zyzzyva"] * 50 + texts[:2]))
  prepared = run(settings(raw, validation_fraction=0.0, validation_paths=(str(held),)))
  assert prepared.report["splits"]["train"]["documents"] == 300
  assert prepared.report["splits"]["validation"]["documents"] == 52
  assert prepared.report["validation_texts_also_in_training"] == 2
  assert stored(prepared, "validation_paths") == held.read_text().splitlines()
  vocabulary = json.loads((prepared.directory / "tokenizer.json").read_text())["model"]["vocab"]
  assert not any("zy" in token for token in vocabulary)


def test_no_validation_is_no_rows(raw):
  prepared = run(settings(raw, validation_fraction=0.0))
  assert prepared.validation.num_rows == 0
  assert prepared.report["splits"]["train"]["documents"] == 300
  assert prepared.report["splits"]["validation"]["words"] == 0


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_tokens_are_as_wide_as_the_vocabulary_needs(vocab_size, dtype, tmp_path):
  tokenizer = types.SimpleNamespace(vocab_size=vocab_size)
  ids_T = np.array([16, vocab_size - 1], np.int32)
  with building._SplitCount(tmp_path / "train", tokenizer) as count:
    count.add([Encoded(ids_T, np.ones(2, np.int8))])
  tokens_S = np.load(tmp_path / "train" / "tokens.npy")
  assert tokens_S.dtype == dtype
  assert tokens_S.tolist() == ids_T.tolist()


def test_the_report_says_what_cleaning_did_and_where_text_came_from(raw):
  name = next(iter(clean.NAMES))
  prepared = run(settings(raw, cleaning=(name,)))
  assert list(prepared.report["cleaning"]) == [name]
  (source,) = prepared.report["sources"]
  assert source["name"] == "corpus.txt"
  assert source["bytes"] == raw.stat().st_size
  assert source["sha256"] == folders.sha256(raw)
  assert source["documents"] == 300
  assert source["words"] == len(raw.read_text().split())
  text = (prepared.directory / "report.txt").read_text()
  for said in ("fill_fraction", name, "corpus.txt", "300 documents", "270"):
    assert said in text


def test_long_work_shows_progress(raw):
  told = []
  prepare(settings(raw), TOKENIZER, seed=0, progress=told.append)
  for stage in ("Reading and cleaning", "Training the tokenizer: reading", "Tokenizing"):
    assert f"{stage}: 100%" in told, told


# ---- When it is built anew


def test_equal_inputs_and_settings_are_reused(raw, monkeypatch):
  first = run(settings(raw))
  monkeypatch.setattr(building, "build", None)  # Would fail if it were called.
  moved = raw.parent.parent / "elsewhere"
  raw.parent.rename(moved)
  data = settings(moved / raw.name, prepared_dir=str(first.directory.parent))
  assert run(data).directory == first.directory


def test_any_change_is_another_folder(raw, tmp_path):
  data = settings(raw)
  held = raw.parent / "held.txt"
  held.write_text("one two\nthree four")
  first = run(data)
  loaded = {**TOKENIZER, "path": str(first.directory / "tokenizer.json")}

  def key(data=data, tokenizer=TOKENIZER, seed=0):
    inputs = preparing._check(data, tokenizer, seed=seed, progress=print)
    return preparing._key(inputs)

  keys = [
    key(),
    key(seed=1),
    key(data | {"seq_len": 32}),
    key(data | {"packing": "documents"}),
    key(data | {"document": "file"}),
    key(data | {"text_field": "text"}),
    key(data | {"cleaning": (next(iter(clean.NAMES)),)}),
    key(data | {"validation_fraction": 0.2}),
    key(data | {"validation_fraction": 0.0, "validation_paths": (str(held),)}),
    key(tokenizer=TOKENIZER | {"vocab_size": 310}),
    key(tokenizer=TOKENIZER | {"min_frequency": 3}),
    key(tokenizer=TOKENIZER | {"add_prefix_space": False}),
    key(tokenizer=loaded),
  ]
  raw.write_text(raw.read_text()[:-2] + "x\n")  # As long as before.
  keys.append(key())
  raw.rename(raw.with_suffix(".train"))
  keys.append(key(settings(raw.with_suffix(".train"))))
  assert len(set(keys)) == len(keys)
  # What a loaded tokenizer's other settings say makes no difference.
  assert key(settings(raw.with_suffix(".train")), loaded) == key(
    settings(raw.with_suffix(".train")), loaded | {"min_frequency": 9}
  )
  second = run(settings(raw.with_suffix(".train")))
  assert second.directory != first.directory


def test_a_loaded_tokenizer_spells_the_text(raw):
  first = run(settings(raw))
  path = str(first.directory / "tokenizer.json")
  second = run(settings(raw), tokenizer={**TOKENIZER, "path": path})
  assert second.directory != first.directory
  np.testing.assert_array_equal(second.train.tokens_S, first.train.tokens_S)


# ---- Loading


def test_damaged_data_is_not_loaded(raw):
  prepared = run(settings(raw))
  path = prepared.directory / "train" / "tokens.npy"
  content = bytearray(path.read_bytes())
  content[-1] ^= 1
  path.write_bytes(content)
  load_prepared(prepared.directory)
  with pytest.raises(UserError, match=r"train/tokens.npy is damaged"):
    load_prepared(prepared.directory, verify=True)
  path.write_bytes(content[:-1])
  with pytest.raises(UserError, match=r"train/tokens.npy has .* bytes"):
    run(settings(raw))
  manifest = prepared.directory / "manifest.json"
  manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))
  path.write_bytes(content)
  with pytest.raises(UserError, match=r"format 99, this program reads 1"):
    load_prepared(prepared.directory)


def test_the_default_place_is_the_users_cache(raw, monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  assert run(settings(raw, prepared_dir="")).directory.parent == tmp_path / "cache" / "looped_lm"
  monkeypatch.delenv("XDG_CACHE_HOME")
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  place = run(settings(raw, prepared_dir="")).directory.parent
  assert place == tmp_path / "home" / ".cache" / "looped_lm"


def test_a_bucket_gets_a_copy_that_other_machines_load(raw, monkeypatch, tmp_path):
  bucket = tmp_path / "bucket"
  monkeypatch.setattr(preparing, "_is_bucket", lambda path: path.startswith(str(bucket)))
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
  data = settings(raw, prepared_dir=str(bucket))
  built = run(data)
  assert built.directory.parent == tmp_path / "one" / "looped_lm"

  # Another machine: an empty cache, and no need to build.
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))
  monkeypatch.setattr(building, "build", None)
  copied = run(data, process_index=1, wait_seconds=5)
  assert copied.directory == tmp_path / "two" / "looped_lm" / built.directory.name
  np.testing.assert_array_equal(copied.train.tokens_S, built.train.tokens_S)
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "three"))
  assert load_prepared(bucket / built.directory.name).report == built.report


def test_other_processes_wait_for_process_0(raw):
  with pytest.raises(UserError, match=r"not prepared within 0.01 s"):
    run(settings(raw), process_index=1, wait_seconds=0.01)
  built = run(settings(raw))
  assert run(settings(raw), process_index=1, wait_seconds=0.01).directory == built.directory


# ---- What cannot work


@pytest.mark.parametrize(
  ("changed", "said"),
  [
    ({"seq_len": 7}, r"data.seq_len=7 must be at least 8"),
    ({"packing": "rows"}, r"data.packing='rows' is none of"),
    ({"validation_fraction": 0.6}, r"validation_fraction=0.6 must lie in \[0, 0.5\]"),
    ({"validation_fraction": -0.1}, r"validation_fraction=-0.1 must lie in"),
    ({"validation_fraction": float("nan")}, r"validation_fraction=nan must lie in"),
    ({"validation_paths": ("x.txt",)}, r"both hold text out"),
    ({"cleaning": ("no_such",)}, r"data.cleaning has 'no_such'"),
    ({"paths": ()}, r"data.paths is empty"),
    ({"paths": ("missing.txt",)}, r"missing.txt: no such file"),
    ({"document": "page"}, r"data.document='page' must be one of"),
  ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_built(changed, said, raw):
  data = settings(raw, **changed)
  with pytest.raises(UserError, match=said):
    run(data)
  assert prepared_names(data) == []


def test_one_file_cannot_be_on_both_sides(raw):
  with pytest.raises(UserError, match=r"is in data.paths and in data.validation_paths"):
    run(settings(raw, validation_fraction=0.0, validation_paths=(str(raw),)))


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(seed, raw):
  with pytest.raises(UserError, match=rf"seed={seed} must lie in"):
    run(settings(raw), seed=seed)


def test_a_vocabulary_of_another_size_than_the_file_is_refused(raw):
  path = str(run(settings(raw)).directory / "tokenizer.json")
  with pytest.raises(UserError, match=r"has 300 tokens, but tokenizer.vocab_size=400; set it to"):
    run(settings(raw), tokenizer={**TOKENIZER, "path": path, "vocab_size": 400})


@pytest.mark.parametrize(
  ("content", "changed", "said"),
  [
    (b"", {}, r"corpus is empty"),
    (b" \n\t\n", {}, r"corpus is empty"),
    (b"good line\nbad \xff line\n", {}, r"corpus.txt, line 2: byte 0xff is not UTF-8"),
    (b"one two three\n", {"validation_fraction": 0.0}, r"vocab_size=300 is more than the text"),
    (b"one two three\n", {}, r"leaves none of the 1 distinct document"),
  ],
)
def test_text_that_cannot_be_used_leaves_nothing_behind(content, changed, said, raw):
  raw.write_bytes(content)
  data = settings(raw, **changed)
  with pytest.raises(UserError, match=said) as caught:
    run(data)
  assert "\n" not in str(caught.value)
  assert [name for name in prepared_names(data) if not name.endswith("-lock")] == []


def test_text_that_fills_no_row_is_refused(raw):
  path = str(run(settings(raw)).directory / "tokenizer.json")
  raw.write_text("the dog")
  data = settings(raw, seq_len=64, validation_fraction=0.0)
  with pytest.raises(UserError, match=r"tokens to train on, which fill no row of data.seq_len=64"):
    run(data, tokenizer={**TOKENIZER, "path": path})


def test_cleaning_that_leaves_nothing_is_refused(raw, monkeypatch):
  monkeypatch.setitem(clean.OPERATIONS, next(iter(clean.OPERATIONS)), lambda text: "")
  with pytest.raises(UserError, match=r"Cleaning left no document of data.paths"):
    run(settings(raw, cleaning=(next(iter(clean.OPERATIONS)),)))


@pytest.mark.parametrize("where", ["documents", "arrays"])
def test_a_full_disk_keeps_nothing(where, raw, monkeypatch):
  def full(*args, **kwargs):
    if where == "documents":  # As array_record says it.
      raise RuntimeError("write() failed: No space left on device; writing documents-paths")
    raise OSError(28, "No space left on device")

  if where == "documents":
    monkeypatch.setattr(corpus.Documents, "download_and_prepare", full)
  else:
    monkeypatch.setattr(building.np, "save", full)
  data = settings(raw)
  with pytest.raises(UserError, match=r"the disk is full; nothing was kept"):
    run(data)
  assert [name for name in prepared_names(data) if not name.endswith("-lock")] == []


@pytest.mark.parametrize("file", ["train/tokens.npy", "validation/start_P.npy", "unigram.npy"])
def test_a_flipped_bit_stops_the_next_start(file, raw):
  """Its size is right, so the checksum alone can tell."""
  path = run(settings(raw)).directory / file
  content = bytearray(path.read_bytes())
  content[-1] ^= 1
  path.write_bytes(content)
  with pytest.raises(UserError, match=rf"{file} is damaged: its checksum .*--mode=prepare"):
    run(settings(raw))
