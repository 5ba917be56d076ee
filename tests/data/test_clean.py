"""What each cleaning operation does to a text, as pairs before -> after."""

import pathlib
import re

from hypothesis import given
from hypothesis import strategies as st
import pytest

from looped_lm.data import clean
from looped_lm.data.documents import Document
from looped_lm.errors import UserError

PAIRS = [
  ("normalize_unicode", "ﬁne ２x²", "fine 2x2"),
  ("remove_control_characters", "a\x00b\u200bc\ufeff\td", "abc\td"),
  ("normalize_punctuation", "“Hi” , he said…", '"Hi", he said...'),
  ("normalize_punctuation", "wait . . . what !! It’s ``so''", 'wait ... what! It\'s "so"'),
  ("normalize_punctuation", "a .5 b", "a .5 b"),
  ("join_contractions", "I do n't know it 's", "I don't know it's"),
  ("join_contractions", "the dogs 'll", "the dogs'll"),
  ("capitalize_sentences", "hello there. am i late?", "Hello there. Am I late?"),
  ("capitalize_sentences", "now i am, i'm told", "Now I am, I'm told"),
  ("capitalize_sentences", "A: hello", "A: Hello"),
  ("normalize_whitespace", " a \t b\u00a0c \n\n\n\n d ", "a b c\n\nd"),
  ("remove_disfluencies", "Uh, I I think um we should go.", "I think we should go."),
  ("remove_disfluencies", "I, uh, I don't know, er, maybe.", "I don't know, maybe."),
  ("remove_disfluencies", "A: Um, yes I do.", "A: Yes I do."),
  ("remove_disfluencies", "The, the dog &-uh barked.", "The dog barked."),
  ("remove_disfluencies", "Uh-huh, that that is for you, you know.", None),
  ("remove_disfluencies", "The UM team had had it in the ER.", None),
  ("remove_disfluencies", "Other  faults , stay", None),
  ("remove_disfluencies", "B: um", ""),
  ("remove_short_content", "A: yes ok", ""),
  ("remove_short_content", "A: yes ok now", None),
  ("lowercase_shouting", "A: THE CAT SAT. I THINK", "A: The cat sat. I think"),
  (
    "lowercase_shouting",
    "He said COME OVER HERE NOW and left",
    "He said come over here now and left",
  ),
  ("lowercase_shouting", "CHAPTER II\nthe NASA ESA men", "Chapter II\nthe NASA ESA men"),
  ("lowercase_shouting", "NASA", None),
  ("remove_wiki_headers", "= = = History = = =", ""),
  ("remove_wiki_headers", "== A ==\nText.\n\na = b", "Text.\n\na = b"),
  ("remove_markup", "<i>Hi</i> &amp; [[Dog|dogs]] [[cat]] _so_", "Hi & dogs cat so"),
  ("remove_markup", "snake_case a < b > c", None),
  ("remove_annotation_tiers", "@Begin\n*MOT:\thi\n%mor:\tco|hi", "*MOT:\thi"),
  ("remove_stage_directions", "[door slams] Hi [1].", "Hi."),
  ("remove_stage_directions", "A: (sighs) Come (or go).", "A: Come (or go)."),
  ("remove_stage_directions", "(LAUGHS)", ""),
  ("remove_stage_directions", "A: [laughs]", ""),
  ("remove_stage_directions", "(He put his hand into his robe again.) (1990)", None),
  ("remove_stage_directions", "♪ la la ♪", "la la"),
  ("normalize_speakers", "*CHI:\tball\n*MOT: yes\n*FAT: no", "B: ball\nA: yes\nA: no"),
]


def documents(*texts, file="f"):
  return [Document(text, file, line) for line, text in enumerate(texts, 1)]


def run(names, *texts):
  return [each.text for each in clean.Cleaner(names).run(documents(*texts))]


@pytest.mark.parametrize(("name", "before", "after"), PAIRS)
def test_an_operation(name, before, after):
  assert clean.OPERATIONS[name](before) == (before if after is None else after)


def test_every_operation_has_a_pair_and_cites_the_table():
  assert {name for name, _, _ in PAIRS} == set(clean.OPERATIONS)
  for operation in (*clean.OPERATIONS.values(), clean.merge_turns, clean.remove_duplicates):
    assert "Table 1: " in operation.__doc__


def test_the_documentation_lists_every_operation():
  page = pathlib.Path(__file__).parents[2] / "docs" / "data_cleaning.md"
  rows = re.findall(r"^\| .*?\| `(\w+)` \|", page.read_text(), re.MULTILINE)
  assert sorted(rows) == sorted(clean.NAMES)


@pytest.mark.parametrize("name", clean.OPERATIONS)
@given(text=st.text() | st.text("aAiI .,'()[]=<>_&-:*\nuhm", max_size=40))
def test_an_operation_takes_any_text_and_adds_no_letters(name, text):
  after = clean.OPERATIONS[name](text)
  if name not in ("normalize_unicode", "remove_markup"):  # ﬁ becomes two letters, &amp; a sign.
    assert sum(map(str.isalnum, after.casefold())) <= sum(map(str.isalnum, text.casefold()))


def test_order_is_the_configs():
  names = ("remove_short_content", "remove_disfluencies")
  assert run(names, "um we go") == ["we go"]
  assert run(names[::-1], "um we go") == []


def test_turns_of_one_speaker_merge():
  turns = ["A: Hi.", "A: You?", "B: Yes.", "plain", "plain", "B: No.", "B: Oh.", "B: Well."]
  assert run(["merge_turns"], *turns) == [
    "A: Hi. You?",
    "B: Yes.",
    "plain",
    "plain",
    "B: No. Oh. Well.",
  ]
  assert run(["merge_turns"], "A: Hi.\nA: You?\nB: Yes.", "B: No.") == [
    "A: Hi. You?\nB: Yes.",
    "B: No.",
  ]


def test_turns_do_not_merge_across_files_or_beyond_the_limit(monkeypatch):
  monkeypatch.setattr(clean, "MERGED_WORDS", 4)
  stream = [*documents("A: one"), *documents("A: two", "A: three", "A: four", "A: five", file="g")]
  merged = list(clean.Cleaner(["merge_turns"]).run(stream))
  assert [(each.file, each.line, each.text) for each in merged] == [
    ("f", 1, "A: one"),
    ("g", 1, "A: two three four"),
    ("g", 4, "A: five"),
  ]


def test_duplicates():
  texts = ["A b.", "A  b.", "a b", "B: A, b!", "?", "!", "c"]
  assert run(["remove_duplicates"], *texts) == ["A b.", "a b", "B: A, b!", "?", "!", "c"]
  assert run(["remove_near_duplicates"], *texts) == ["A b.", "?", "!", "c"]


def test_memory_for_duplicates_is_bounded(monkeypatch):
  monkeypatch.setattr(clean, "REMEMBERED_DOCUMENTS", 2)
  assert run(["remove_duplicates"], "a", "b", "a", "c", "a") == ["a", "b", "c", "a"]


def test_the_report_counts_and_shows():
  cleaner = clean.Cleaner(["remove_disfluencies", "merge_turns", "remove_duplicates"])
  kept = list(cleaner.run(documents("A: um hi", "A: you", "uh", "B: go", "B: go.", "x", "x")))
  assert [each.text for each in kept] == ["A: hi you", "B: go go.", "x"]
  report = cleaner.report()
  figures = {
    name: [entry[key] for key in ("documents", "changed", "removed", "merged")]
    for name, entry in report.items()
  }
  assert figures == {
    "remove_disfluencies": [7, 1, 1, 0],
    "merge_turns": [6, 0, 0, 2],
    "remove_duplicates": [4, 0, 1, 0],
  }
  assert [(e["words_before"], e["words_removed"]) for e in report.values()] == [
    (12, 2),
    (10, 2),
    (8, 1),
  ]
  assert report["remove_disfluencies"]["samples"] == [
    {"file": "f", "line": 1, "before": "A: um hi", "after": "A: hi"},
    {"file": "f", "line": 3, "before": "uh", "after": ""},
  ]
  assert report["merge_turns"]["samples"][0]["after"] == "A: hi you"


@given(texts=st.lists(st.text("aA b:.\n1um", min_size=1).filter(str.strip)))
def test_words_removed_account_for_every_word(texts):
  cleaner = clean.Cleaner(clean.NAMES)
  kept = sum(len(each.text.split()) for each in cleaner.run(documents(*texts)))
  removed = sum(entry["words_removed"] for entry in cleaner.report().values())
  assert kept == sum(len(text.split()) for text in texts) - removed


def test_samples_are_few_and_short():
  cleaner = clean.Cleaner(["remove_disfluencies"])
  list(cleaner.run(documents(*["um " + "x" * 999] * 50)))
  samples = cleaner.report()["remove_disfluencies"]["samples"]
  assert len(samples) == clean.SAMPLES
  assert samples[0]["before"].endswith("[…702 more characters]")


def test_names_are_checked():
  with pytest.raises(UserError, match=r"'remove_duplicate'.*Did you mean 'remove_duplicates'"):
    clean.Cleaner(["remove_duplicate"])
  with pytest.raises(UserError, match="twice"):
    clean.Cleaner(["merge_turns", "merge_turns"])
