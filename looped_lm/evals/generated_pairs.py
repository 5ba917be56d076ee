"""Minimal pairs made by rules: agreement, word order, determiners, questions.

Each paradigm is one function that draws a right and a wrong sentence of the same words, or of words
that differ in one form, so that neither length nor the choice of nouns gives the answer away. The
words are common English ones.
"""

from collections.abc import Callable, Iterator
import random

from looped_lm.data.generated_english import article, plural, present

Pair = tuple[str, str]  # Right, wrong.


def _words(text: str) -> list[str]:
  return text.split()


_BEINGS = _words("boy girl man woman child teacher king queen dog horse cow bird sister brother")
_MEN = _words("boy man king brother uncle")
_NAMES = _words("Mary John Anna Peter Sarah David")
_THINGS = _words("book box cup hat key letter table stone apple orange egg umbrella knife basket")
_MASSES = _words("water milk bread sand wood money")
_ADJECTIVES = _words("big small old young happy tall strong angry quiet kind beautiful")
_ADVERBS = ["every day", "at night", "in the house", "very often"]
_INTRANSITIVE = _words("run sleep sing walk laugh work play sit")
_PAST = {  # Transitive verbs.
  "see": "saw",
  "find": "found",
  "take": "took",
  "bring": "brought",
  "hold": "held",
  "want": "wanted",
  "like": "liked",
  "know": "knew",
  "follow": "followed",
  "help": "helped",
}
_TRANSITIVE = list(_PAST)


def pairs(*, per_paradigm: int) -> Iterator[tuple[str, str, str]]:
  """Gives (paradigm, right, wrong): different pairs, the same ones in every run."""
  for name, make in PARADIGMS.items():
    draw = random.Random(f"minimal pairs: {name}")  # Strings seed alike on every machine.
    made: set[Pair] = set()
    while len(made) < per_paradigm:
      right, wrong = (text[0].upper() + text[1:] for text in make(draw))
      if (right, wrong) not in made:
        made.add((right, wrong))
        yield name, right, wrong


# ---- Agreement


def _verb(draw: random.Random) -> Pair:
  many, verb, tail = draw.random() < 0.5, draw.choice(_INTRANSITIVE), _adverb(draw)
  noun = _being(draw, many)
  return _both(lambda agrees: f"the {noun} {present(verb, plural=many is agrees)} {tail}.")


def _verb_across_a_clause(draw: random.Random) -> Pair:
  many, verb = draw.random() < 0.5, draw.choice(_INTRANSITIVE)
  link = present(draw.choice(_TRANSITIVE), plural=many)
  head = f"the {_being(draw, many)} that {link} the {_being(draw, not many)}"
  return _both(lambda agrees: f"{head} {present(verb, plural=many is agrees)}.")


def _be(draw: random.Random) -> Pair:
  many, quality = draw.random() < 0.5, draw.choice(_ADJECTIVES)
  noun = _being(draw, many)
  forms = draw.choice([("is", "are"), ("was", "were")])
  return _both(lambda agrees: f"the {noun} {forms[many is agrees]} {quality}.")


def _reflexive(draw: random.Random) -> Pair:
  many, verb = draw.random() < 0.5, _past(draw)
  noun = _number(draw.choice(_MEN), many)
  forms = "himself", "themselves"
  return _both(lambda agrees: f"the {noun} {verb} {forms[many is agrees]}.")


# ---- Word order


def _adjective_before_noun(draw: random.Random) -> Pair:
  noun, quality = _being(draw, draw.random() < 0.5), draw.choice(_ADJECTIVES)
  tail = f"{_past(draw)} the {_thing(draw)}."
  return f"the {quality} {noun} {tail}", f"the {noun} {quality} {tail}"


def _object_after_verb(draw: random.Random) -> Pair:
  who, verb, thing = draw.choice(_NAMES), _past(draw), _thing(draw)
  return f"{who} {verb} the {thing}.", f"{who} the {thing} {verb}."


def _determiner_before_noun(draw: random.Random) -> Pair:
  who, verb, thing = draw.choice(_NAMES), _past(draw), _thing(draw)
  return f"{who} {verb} the {thing}.", f"{who} {verb} {thing} the."


# ---- Determiners


def _this_or_these(draw: random.Random) -> Pair:
  many, who, verb = draw.random() < 0.5, draw.choice(_NAMES), _past(draw)
  thing = _thing(draw, many)
  forms = draw.choice([("this", "these"), ("that", "those")])
  return _both(lambda agrees: f"{who} {verb} {forms[many is agrees]} {thing}.")


def _a_or_an(draw: random.Random) -> Pair:
  who, verb, vowel = draw.choice(_NAMES), _past(draw), draw.random() < 0.5
  thing = draw.choice([each for each in _THINGS if (article(each) == "an") is vowel])
  right = article(thing)
  wrong = "a" if right == "an" else "an"
  return f"{who} {verb} {right} {thing}.", f"{who} {verb} {wrong} {thing}."


def _much_or_many(draw: random.Random) -> Pair:
  countable, who, verb = draw.random() < 0.5, draw.choice(_NAMES), _past(draw)
  what = _thing(draw, True) if countable else draw.choice(_MASSES)
  forms = "much", "many"
  return _both(lambda agrees: f"{who} {verb} {forms[countable is agrees]} {what}.")


# ---- Questions


def _inversion(draw: random.Random) -> Pair:
  many, verb = draw.random() < 0.5, draw.choice(_TRANSITIVE)
  noun, auxiliary = _being(draw, many), "do" if many else "does"
  return f"what {auxiliary} the {noun} {verb}?", f"what the {noun} {auxiliary} {verb}?"


def _base_form_after_did(draw: random.Random) -> Pair:
  noun, verb, thing = _being(draw, False), draw.choice(_TRANSITIVE), _thing(draw)
  wrong = draw.choice([_PAST[verb], present(verb, plural=False)])
  return f"did the {noun} {verb} the {thing}?", f"did the {noun} {wrong} the {thing}?"


# ---- Parts


def _both(sentence: Callable[[bool], str]) -> Pair:
  return sentence(True), sentence(False)


def _number(noun: str, many: bool) -> str:
  return plural(noun) if many else noun


def _being(draw: random.Random, many: bool) -> str:
  return _number(draw.choice(_BEINGS), many)


def _thing(draw: random.Random, many: bool = False) -> str:
  return _number(draw.choice(_THINGS), many)


def _past(draw: random.Random) -> str:
  return _PAST[draw.choice(_TRANSITIVE)]


def _adverb(draw: random.Random) -> str:
  return draw.choice(_ADVERBS)


PARADIGMS: dict[str, Callable[[random.Random], Pair]] = {
  "agreement/verb": _verb,
  "agreement/verb_across_a_clause": _verb_across_a_clause,
  "agreement/be": _be,
  "agreement/reflexive": _reflexive,
  "word_order/adjective_before_noun": _adjective_before_noun,
  "word_order/object_after_verb": _object_after_verb,
  "word_order/determiner_before_noun": _determiner_before_noun,
  "determiners/this_or_these": _this_or_these,
  "determiners/a_or_an": _a_or_an,
  "determiners/much_or_many": _much_or_many,
  "questions/inversion": _inversion,
  "questions/base_form_after_did": _base_form_after_did,
}
