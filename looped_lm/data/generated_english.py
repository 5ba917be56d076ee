"""Simple English made by rules, for when there is no text at hand.

Short stories of a few sentences about two or three people and things. Subjects agree with verbs in
number, determiners with nouns (this dog, these dogs; a, an; much, many), pronouns with the people
they stand for, and questions invert. Relative clauses and prepositional phrases put nouns of the
other number between subject and verb ("the dogs that the girl sees run"), so that agreement is not
a matter of neighbours. Not real text: no meaning beyond who likes to do what.
"""

from collections.abc import Iterator
import dataclasses
import hashlib
import inspect
import random
import sys


def _words(text: str) -> list[str]:
  return text.split()


_PEOPLE = _words(
  "boy girl man woman child teacher doctor farmer baker sailor painter singer neighbor friend "
  "brother sister uncle aunt king queen soldier driver nurse student writer hunter guard cook "
  "pilot clerk dancer builder judge priest lawyer waiter artist actor owner officer"
)
_ANIMALS = _words(
  "dog cat horse cow bird fox mouse wolf sheep goat duck hen rabbit bear lion elephant owl ant "
  "frog turtle monkey tiger goose fish deer pig"
)
_THINGS = _words(
  "ball book box cup apple orange egg hat coat key knife letter picture bag chair table lamp "
  "stone leaf flower cake toy umbrella bell rope basket shoe ring drum kite candle map bottle "
  "blanket brush"
)
_PLACES = _words(
  "house garden river forest school market church farm kitchen street bridge hill field harbor "
  "island tower barn shop room village station castle library lake"
)
_MASSES = _words("water milk bread sand snow wood money rice honey sugar")
_IRREGULAR_PLURALS = {
  "man": "men",
  "woman": "women",
  "child": "children",
  "mouse": "mice",
  "wolf": "wolves",
  "sheep": "sheep",
  "goose": "geese",
  "fish": "fish",
  "deer": "deer",
  "knife": "knives",
  "leaf": "leaves",
}
_FEMALE = frozenset(_words("girl woman sister aunt queen"))
_MALE = frozenset(_words("boy man brother uncle king"))
_NAMES = {
  "she": _words("Anna Mary Emma Lucy Sarah Alice Grace Ruth Clara Helen Rose Nora Ivy Ella Julia"),
  "he": _words("Tom Peter John Sam Jack Henry Paul David Oscar Ben Leo Max Adam Felix Hugo"),
}
_ADJECTIVES = _words(
  "big small old young happy sad red blue green white black tall short kind angry quiet loud "
  "clever brave tired hungry strong weak clean dirty new heavy light warm cold soft round "
  "empty honest lazy gentle proud careful busy ugly beautiful"
)
_ADVERBS = _words(
  "slowly quickly quietly loudly often always never again today happily gently alone"
)
_PREPOSITIONS = _words("near behind under above beside in")
# Base form, past, participle; the rest follows by rule.
_TRANSITIVE = {
  "see": ("saw", "seen"),
  "like": ("liked", "liked"),
  "find": ("found", "found"),
  "carry": ("carried", "carried"),
  "watch": ("watched", "watched"),
  "follow": ("followed", "followed"),
  "help": ("helped", "helped"),
  "love": ("loved", "loved"),
  "push": ("pushed", "pushed"),
  "catch": ("caught", "caught"),
  "bring": ("brought", "brought"),
  "hold": ("held", "held"),
  "draw": ("drew", "drawn"),
  "hide": ("hid", "hidden"),
  "touch": ("touched", "touched"),
  "remember": ("remembered", "remembered"),
  "want": ("wanted", "wanted"),
  "choose": ("chose", "chosen"),
  "forget": ("forgot", "forgotten"),
  "miss": ("missed", "missed"),
  "visit": ("visited", "visited"),
  "know": ("knew", "known"),
}
_INTRANSITIVE = {
  "run": ("ran", "run"),
  "sleep": ("slept", "slept"),
  "sing": ("sang", "sung"),
  "walk": ("walked", "walked"),
  "laugh": ("laughed", "laughed"),
  "cry": ("cried", "cried"),
  "swim": ("swam", "swum"),
  "dance": ("danced", "danced"),
  "wait": ("waited", "waited"),
  "fall": ("fell", "fallen"),
  "arrive": ("arrived", "arrived"),
  "smile": ("smiled", "smiled"),
  "play": ("played", "played"),
  "work": ("worked", "worked"),
  "jump": ("jumped", "jumped"),
  "sit": ("sat", "sat"),
  "rest": ("rested", "rested"),
  "hurry": ("hurried", "hurried"),
}
_SAYING = {
  "say": "said",
  "think": "thought",
  "know": "knew",
  "believe": "believed",
  "hope": "hoped",
}
_PRONOUNS = {  # Subject: object, possessive, reflexive.
  "he": ("him", "his", "himself"),
  "she": ("her", "her", "herself"),
  "it": ("it", "its", "itself"),
  "they": ("them", "their", "themselves"),
  "I": ("me", "my", "myself"),
  "you": ("you", "your", "yourself"),
  "we": ("us", "our", "ourselves"),
}
_NUMBERS = _words("two three four five six")


@dataclasses.dataclass(frozen=True)
class Phrase:
  """A noun phrase.

  Attributes:
    text: The words.
    plural: Takes a plural verb; "I" and "you" do, apart from "am".
    pronoun: What stands for it as a subject.
  """

  text: str
  plural: bool
  pronoun: str


def passages(*, seed: int) -> Iterator[str]:
  """Tells stories without end; the same seed tells the same ones."""
  story = 0
  while True:
    # Strings seed alike on every machine and version.
    yield _Story(random.Random(f"{seed} {story}")).tell()
    story += 1


def fingerprint() -> str:
  """Digest of this file's source: other rules, other text."""
  return hashlib.sha256(inspect.getsource(sys.modules[__name__]).encode()).hexdigest()


def plural(noun: str) -> str:
  """Gives a noun's plural."""
  return _IRREGULAR_PLURALS.get(noun) or noun + _ending(noun)


def present(verb: str, *, plural: bool) -> str:
  """Gives the present form that agrees with a subject of the third person."""
  if plural:
    return verb
  if _falls_on_y(verb):
    return verb[:-1] + "ies"
  return verb + _ending(verb)


def article(word: str) -> str:
  """Gives `a` or `an`, by the sound that the words here begin with."""
  return "an" if word[0] in "aeiou" else "a"


def _ending(word: str) -> str:
  return "es" if word.endswith(("s", "x", "ch", "sh")) else "s"


def _falls_on_y(word: str) -> bool:
  return word.endswith("y") and word[-2] not in "aeiou"


def _pronoun(phrase: Phrase) -> Phrase:
  # A singular "they" (someone, the baker) takes a plural verb all the same.
  return Phrase(phrase.pronoun, phrase.plural or phrase.pronoun == "they", phrase.pronoun)


class _Story:
  """A few sentences that share people and a tense."""

  def __init__(self, draw: random.Random):
    self._draw = draw
    self._past = draw.random() < 0.5
    self._cast = [self._who(named=draw.random() < 0.5) for _ in range(2)]

  def tell(self) -> str:
    count = self._draw.randint(3, 8)
    return " ".join(self._sentence(first=i == 0) for i in range(count))

  # ---- Sentences

  def _sentence(self, *, first: bool) -> str:
    kinds = [self._statement, self._statement, self._statement, self._saying, self._existence]
    if not first:
      kinds += [self._question, self._what_question, self._answer, self._because]
    text, end = self._draw.choice(kinds)()
    return text[0].upper() + text[1:] + end

  def _statement(self) -> tuple[str, str]:
    return self._clause(self._subject()), "."

  def _because(self) -> tuple[str, str]:
    subject = self._draw.choice(self._cast)
    link = self._draw.choice(["because", "when", "but", "and", "while"])
    again = _pronoun(subject)
    comma = "," if link in ("but", "and") else ""
    return f"{self._clause(subject)}{comma} {link} {self._clause(again)}", "."

  def _saying(self) -> tuple[str, str]:
    subject = self._draw.choice(self._cast)
    verb = self._draw.choice(list(_SAYING))
    verb = _SAYING[verb] if self._past else present(verb, plural=subject.plural)
    that = self._draw.choice([" that", ""])
    return f"{subject.text} {verb}{that} {self._clause(self._subject())}", "."

  def _existence(self) -> tuple[str, str]:
    thing = self._noun(self._draw.choice([_ANIMALS, _THINGS, _PEOPLE]), definite=False)
    return f"there {self._be(thing)} {thing.text} {self._place()}", "."

  def _question(self) -> tuple[str, str]:
    subject = self._subject(relative=False)
    if self._draw.random() < 0.3:
      return f"{self._be(subject)} {subject.text} {self._draw.choice(_ADJECTIVES)}", "?"
    return f"{self._do(subject)} {subject.text} {self._base_predicate()}", "?"

  def _what_question(self) -> tuple[str, str]:
    subject = self._subject(relative=False)
    verb = self._draw.choice(list(_TRANSITIVE))
    word = self._draw.choice(["what", "who", "which " + self._draw.choice(_THINGS)])
    return f"{word} {self._do(subject)} {subject.text} {verb}", "?"

  def _answer(self) -> tuple[str, str]:
    who = _pronoun(self._draw.choice(self._cast))
    if self._draw.random() < 0.5:
      return f"yes, {who.text} {self._do(who)}", "."
    return f"no, {who.text} {self._do(who)} not {self._base_predicate()}", "."

  # ---- Clauses

  def _clause(self, subject: Phrase) -> str:
    kind = self._draw.random()
    if kind < 0.2:
      tail = self._draw.choice(_ADJECTIVES)
      if self._draw.random() < 0.3:
        tail = f"as {tail} as {self._noun(_ANIMALS + _PEOPLE).text}"
      return f"{subject.text} {self._be(subject)} {tail}"
    if kind < 0.3:
      modal = self._draw.choice(["can", "will", "must", "should"] if not self._past else ["could"])
      return f"{subject.text} {modal} {self._base_predicate()}"
    if kind < 0.4:
      return f"{subject.text} {self._do(subject)} not {self._base_predicate()}"
    if kind < 0.5:
      have = "had" if self._past else "have" if subject.plural else "has"
      verb = self._draw.choice(list(_TRANSITIVE))
      return f"{subject.text} {have} {_TRANSITIVE[verb][1]} {self._object(subject)}"
    if kind < 0.6:
      want = self._inflect("want", subject)
      return f"{subject.text} {want} to {self._base_predicate()}"
    if kind < 0.8:
      verb = self._inflect(self._draw.choice(list(_TRANSITIVE)), subject)
      return f"{subject.text} {verb} {self._object(subject)}{self._where()}"
    verb = self._inflect(self._draw.choice(list(_INTRANSITIVE)), subject)
    manner = f" {self._draw.choice(_ADVERBS)}" if self._draw.random() < 0.4 else ""
    return f"{subject.text} {verb}{manner}{self._where()}"

  def _base_predicate(self) -> str:
    if self._draw.random() < 0.6:
      return f"{self._draw.choice(list(_TRANSITIVE))} {self._object(None)}"
    return f"{self._draw.choice(list(_INTRANSITIVE))}{self._where()}"

  def _inflect(self, verb: str, subject: Phrase) -> str:
    if self._past:
      return {**_TRANSITIVE, **_INTRANSITIVE}[verb][0]
    return present(verb, plural=subject.plural)

  def _be(self, subject: Phrase) -> str:
    if subject.text == "I":
      return "was" if self._past else "am"
    if self._past:
      return "were" if subject.plural else "was"
    return "are" if subject.plural else "is"

  def _do(self, subject: Phrase) -> str:
    return "did" if self._past else "do" if subject.plural else "does"

  def _where(self) -> str:
    return f" {self._place()}" if self._draw.random() < 0.35 else ""

  def _place(self) -> str:
    return f"{self._draw.choice(_PREPOSITIONS)} {self._noun(_PLACES, relative=False).text}"

  # ---- Noun phrases

  def _subject(self, *, relative: bool = True) -> Phrase:
    kind = self._draw.random()
    if kind < 0.35:
      who = self._draw.choice(self._cast)
      return who if self._draw.random() < 0.5 else _pronoun(who)
    if kind < 0.45:
      word = self._draw.choice(["I", "you", "we", "they"])
      return Phrase(word, True, word)
    if kind < 0.5:
      one, two = self._who(named=True), self._noun(_PEOPLE, relative=False)
      return Phrase(f"{one.text} and {two.text}", True, "they")
    if kind < 0.55:
      word = self._draw.choice(["everyone", "nobody", "someone"])
      return Phrase(word, False, "they")
    return self._noun(self._draw.choice([_PEOPLE, _ANIMALS]), relative=relative)

  def _object(self, subject: Phrase | None) -> str:
    kind = self._draw.random()
    if subject and kind < 0.1:
      return _PRONOUNS[subject.pronoun][2] if subject.pronoun in _PRONOUNS else "it"
    if subject and kind < 0.25:
      return f"{_PRONOUNS[subject.pronoun][1]} {self._draw.choice(_THINGS)}"
    if kind < 0.35:
      return _PRONOUNS[self._draw.choice(["I", "you", "we"])][0]
    if kind < 0.45:
      return f"{self._draw.choice(['some', 'the', 'much', 'little'])} {self._draw.choice(_MASSES)}"
    return self._noun(self._draw.choice([_THINGS, _THINGS, _ANIMALS, _PEOPLE])).text

  def _who(self, *, named: bool) -> Phrase:
    if named:
      pronoun = self._draw.choice(["he", "she"])
      return Phrase(self._draw.choice(_NAMES[pronoun]), False, pronoun)
    return self._noun(_PEOPLE, relative=False, definite=True)

  def _noun(
    self, nouns: list[str], *, relative: bool = True, definite: bool | None = None
  ) -> Phrase:
    noun = self._draw.choice(nouns)
    many = self._draw.random() < 0.4
    adjective = f"{self._draw.choice(_ADJECTIVES)} " if self._draw.random() < 0.35 else ""
    head = f"{adjective}{plural(noun) if many else noun}"
    if definite is None:
      definite = self._draw.random() < 0.6
    if definite:
      choices = ["the", "the", "these", "those"] if many else ["the", "the", "this", "that"]
    else:
      choices = ["some", "many", *_NUMBERS] if many else [article(head), article(head), "one"]
    text = f"{self._draw.choice(choices)} {head}"
    if relative and self._draw.random() < 0.25:
      text += self._relative(plural=many, person=nouns is _PEOPLE)
    elif relative and self._draw.random() < 0.15:
      text += f" {self._place()}"
    pronoun = "they" if many or nouns is _PEOPLE else "it"
    if not many and noun in _FEMALE:
      pronoun = "she"
    if not many and noun in _MALE:
      pronoun = "he"
    return Phrase(text, many, pronoun)

  def _relative(self, *, plural: bool, person: bool) -> str:
    head = Phrase("", plural, "they")
    other = self._noun(self._draw.choice([_PEOPLE, _ANIMALS]), relative=False)
    word = self._draw.choice(["who", "that"]) if person else "that"
    if self._draw.random() < 0.5:
      verb = self._inflect(self._draw.choice(list(_TRANSITIVE)), head)
      return f" {word} {verb} {other.text}"
    verb = self._inflect(self._draw.choice(list(_TRANSITIVE)), other)
    return f" {'that' if word == 'who' else word} {other.text} {verb}"
