"""Cleaning operations that look at one document: small functions from text to text.

Each gives '' where nothing is left, and says which row of the paper's Table 1 (arXiv 2609.09691) it
serves. The table's style and disfluency examples are rewrites by hand or by a model; rules do the
part that can be named exactly and leave the rest. Operations that must see several documents are in
`clean.py`. Patterns begin with a plain character or set where they can, and look behind after it:
the engine then skips text that cannot match.
"""

from collections.abc import Callable
import html
import operator
import re
import unicodedata

SHORTEST_WORDS = 3  # A document with fewer is short content.
_SHOUTED_WORDS = 4  # So many words of capitals in a row are shouting, not a name.

# "A:", "*MOT:", "JOHN:", "Mr. Smith:": who speaks, at the start of a line.
SPEAKER = re.compile(r"^(\*[A-Z0-9]{2,4}|[A-Z][A-Za-z.']{0,15}(?: [A-Z][A-Za-z.']{0,15})?):\s+")


def split_speaker(line: str) -> tuple[str, str]:
  """Parts a speaker's label, '' where there is none, from what is said."""
  label = SPEAKER.match(line)
  return (line[: label.end()], line[label.end() :]) if label else ("", line)


def _by_line(change: Callable[[str], str], text: str) -> str:
  """Changes each line; a line that loses all its text goes with its line end."""
  if "\n" not in text:
    return change(text).strip()
  kept = []
  for line in text.split("\n"):
    changed = change(line)
    if changed.strip() or not line.strip():
      kept.append(changed)
  return "\n".join(kept).strip()


# ---- Style and grammar normalisation


def normalize_unicode(text: str) -> str:
  """Gives one spelling (NFKC) to characters that look alike: ﬁ, ², full-width letters.

  Table 1: style normalisation. Changes meaning where a superscript or a fraction carries it.
  """
  return unicodedata.normalize("NFKC", text)


_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u2060\ufeff\ufffd]")


def remove_control_characters(text: str) -> str:
  """Takes away NUL and other controls, soft hyphens, zero-width spaces and replacement marks.

  Table 1: structural noise. Zero-width joiners stay: some scripts spell with them.
  """
  return _CONTROLS.sub("", text)


_QUOTES = str.maketrans(
  {**dict.fromkeys("‘’‚‛′", "'"), **dict.fromkeys("“”„‟″«»", '"'), "…": "...", "―": "—"}
)
_DOUBLED_QUOTE = re.compile(r"``|''")
_DOTS = re.compile(r"\. ?\. ?\.(?: ?\.)*")
_REPEATED_MARK = re.compile(r"([!?,;:])\1+")
_SPACE_BEFORE = re.compile(r" +([.,;:!?])(?=\s|$)")
_SPACED_MARKS = (" .", " ,", " ;", " :", " !", " ?")


def normalize_punctuation(text: str) -> str:
  """Writes quotes and ellipses one way, and puts no space before, and no run of, the same mark.

  Table 1: style normalisation. Cannot put in marks that are missing.
  """
  if not text.isascii():
    text = text.translate(_QUOTES)
  text = _REPEATED_MARK.sub(r"\1", _DOTS.sub("...", _DOUBLED_QUOTE.sub('"', text)))
  if any(mark in text for mark in _SPACED_MARKS):
    text = _SPACE_BEFORE.sub(r"\1", text)
  return text


_SPLIT_CLITIC = re.compile(r" (?<=\w )([nN]'[tT]|'(?:[smdSMD]|re|ve|ll|RE|VE|LL))\b")


def join_contractions(text: str) -> str:
  """Joins what corpora split: do n't, it 's.

  Table 1: grammar normalisation. Does not touch "gon na", whose parts are words too.
  """
  return _SPLIT_CLITIC.sub(r"\1", text) if "'" in text else text


_LINE_START = re.compile(r"^((?:\*?[A-Z]\w{0,3}:\s+)?[\"'(]*)([a-z])")
_SENTENCE_START = re.compile(r"[.!?](?<=[a-z].) [a-z]")
_LONE_I = re.compile(r"i(?<![\w.'-]i)(?=$|[ ,;!?]|\.$|'(?:m|d|ve|ll)\b)")


def capitalize_sentences(text: str) -> str:
  """Gives sentences a capital and writes the pronoun I large.

  Table 1: grammar normalisation. Cannot find names, and takes an abbreviation's dot for an end.
  """

  def change(line: str) -> str:
    line = _LINE_START.sub(lambda m: m[1] + m[2].upper(), line)
    line = _SENTENCE_START.sub(lambda m: m[0].upper(), line)
    return _LONE_I.sub("I", line)

  return _by_line(change, text)


_BLANKS = re.compile(r"[^\S\n]+")
_GAPS = re.compile(r"\n{3,}")


def normalize_whitespace(text: str) -> str:
  """Leaves one space between words, none at the ends of lines, at most one empty line.

  Table 1: style normalisation.
  """
  text = "\n".join(" ".join(line.split()) for line in text.split("\n"))
  return _GAPS.sub("\n\n", text).strip()


# ---- Disfluency removal

_FILLER = re.compile(
  r"(?P<before>, *|^|(?<=\s))(?:&[-~+]\w+|(?<![\w'-])(?:[Uu]h+|[Uu]h?m+|[Ee]r+m*|[Ee]hm+))"
  r"(?![\w'-])(?P<after>,?(?: |$)|\.{3} ?|(?=[.!?]))"
)
_FILLER_HINT = re.compile(r"[uUeE&](?:[hHmMrR]|[-~+])(?<![\w'-]..)")
# Words that nobody says twice on purpose; these also across a comma ("the, the dog") …
_REPEATED_ACROSS = re.compile(
  r"(?<![\w'-])(a|an|the|and|but|i|he|she|we|they|my|your|our|i'm|it's|he's|she's|we're|they're|"
  r"i'll|i've|don't)(?:(?:,| -+|-+|\.{2,3})? +\1)+(?![\w'-])",
  re.IGNORECASE,
)
# … and these only side by side: "As for you, you will go".
_REPEATED_BESIDE = re.compile(
  r"(?<![\w'-])(you|it|its|their|this|to|of|at|with|from|or|if|what|when|where|who|how|you're|can't|"
  r"there's)(?: +\1)+(?![\w'-])",
  re.IGNORECASE,
)
_JOINTS = str.maketrans(",-.", "   ")


def remove_disfluencies(text: str) -> str:
  """Takes out fillers (uh, um, er, &-uh) and immediate repetitions of function words.

  Table 1: disfluency removal. Repeated content words stay ("very very", "had had", "no no"), and
  restarts with other words stay: telling them from style takes a reader.
  """
  return _by_line(_speak_fluently, text)


def _speak_fluently(line: str) -> str:
  head, said = split_speaker(line)
  cleaned = _FILLER.sub(_without_filler, said) if _FILLER_HINT.search(said) else said
  words = cleaned.lower().translate(_JOINTS).split()
  if any(map(operator.eq, words, words[1:])):
    cleaned = _REPEATED_ACROSS.sub(lambda match: match[1], cleaned)
    cleaned = _REPEATED_BESIDE.sub(lambda match: match[1], cleaned)
  if cleaned == said:
    return line
  cleaned = _BLANKS.sub(" ", cleaned).strip(" ,")
  if not any(map(str.isalnum, cleaned)):
    return ""
  return head + (cleaned[:1].upper() + cleaned[1:] if said[:1].isupper() else cleaned)


def _without_filler(match: re.Match[str]) -> str:
  if match["before"].startswith(",") and match["after"]:
    return ", " if match["after"].startswith(",") else " "
  return ""


# ---- Short content


def remove_short_content(text: str) -> str:
  """Removes a document of fewer than three words, the speaker's label not counted.

  Table 1: short-content filtering.
  """
  return text if len(split_speaker(text)[1].split()) >= SHORTEST_WORDS else ""


# ---- Case

_SHOUTED = re.compile(
  rf"[A-Z](?<![\w'].)[A-Z']*(?:[,;:]? [A-Z][A-Z']*){{{_SHOUTED_WORDS - 1},}}(?![\w'])"
)
_SENTENCE_LETTER = re.compile(r"(^\W*|[.!?][\"')]* +)([a-z])")
_ROMAN = re.compile(r"\b(?!(?:i|x)\b)(?=[ivx])x{0,3}(?:ix|iv|v?i{0,3})\b(?!')")


def lowercase_shouting(text: str) -> str:
  """Writes small a line of two or more words that are all capitals, and runs of four or more.

  Table 1: case normalisation. Sentences keep their capital, and so do I and Roman numerals; names
  lose theirs, and one word alone (NASA, STOP) stays, for rules know no names.
  """
  return _by_line(_whisper, text)


def _whisper(line: str) -> str:
  head, said = split_speaker(line)
  if said.isupper() and sum(len(word) > 1 for word in said.split()) > 1:
    lowered = _SENTENCE_LETTER.sub(lambda match: match[1] + match[2].upper(), said.lower())
    return head + _lone_capitals(lowered)

  def lower(match: re.Match[str]) -> str:
    small = match[0].lower()
    before = said[: match.start()].rstrip(" \"'(")
    if not before or before[-1] in ".!?":
      small = small[0].upper() + small[1:]
    return _lone_capitals(small)

  return head + _SHOUTED.sub(lower, said)


def _lone_capitals(text: str) -> str:
  return _LONE_I.sub("I", _ROMAN.sub(lambda match: match[0].upper(), text))


# ---- Structural noise

_HEADER = re.compile(r"^\s*=(?:\s*=)*\s*[^=\s](?:.*\S)?\s*=(?:\s*=)*\s*$")


def remove_wiki_headers(text: str) -> str:
  """Removes lines such as `= = History = =` and `== History ==`.

  Table 1: structural noise.
  """
  return _by_line(lambda line: "" if _HEADER.match(line) else line, text)


_TAG = re.compile(r"</?[A-Za-z][A-Za-z0-9]*(?:\s[^<>]*)?/?>")
_WIKI_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]+)\]\]")
_EMPHASIS = re.compile(r"(?<!\w)_([^_\n]+)_(?!\w)")


def remove_markup(text: str) -> str:
  """Takes away tags (<i>), wiki links' brackets and _emphasis_, and spells out &amp;.

  Table 1: structural noise. Keeps what stands between the marks.
  """
  if "<" in text:
    text = _TAG.sub("", text)
  if "[[" in text:
    text = _WIKI_LINK.sub(r"\1", text)
  if "_" in text:
    text = _EMPHASIS.sub(r"\1", text)
  return html.unescape(text).strip()


_TIER = re.compile(r"^\s*(?:%[a-z]{3}:|@[A-Z][A-Za-z ]*(?::|$))")


def remove_annotation_tiers(text: str) -> str:
  """Removes CHILDES lines that no one spoke: `%mor:` and other tiers, `@Begin` and other headers.

  Table 1: structural noise.
  """
  return _by_line(lambda line: "" if _TIER.match(line) else line, text)


# ---- Stage directions and speakers

_BRACKETED = re.compile(r"\[[^\[\]\n]{0,200}\]")
# At most six words in round brackets, one of them with a letter: more is prose.
_ASIDE = r"\((?=[^()]*[^\W\d])\s*[^\s()]+(?:\s+[^\s()]+){0,5}\s*\)"
_WHOLE_ASIDE = re.compile(rf"^[-\s]*{_ASIDE}[\s.]*$")
_OPENING_ASIDE = re.compile(rf"^([-\s]*){_ASIDE}\s*")
_MUSIC = re.compile(r"[♪♫#]+ ?")


def remove_stage_directions(text: str) -> str:
  """Removes [door slams] anywhere, (sighs) where it opens or fills a line, and signs of music.

  Table 1: stage-direction removal. Round brackets inside a sentence stay: prose needs them.
  """

  def change(line: str) -> str:
    head, body = split_speaker(_BRACKETED.sub("", line))
    body = "" if _WHOLE_ASIDE.match(body) else _OPENING_ASIDE.sub(r"\1", body)
    if "♪" in body or "♫" in body:
      body = _MUSIC.sub("", body)
    if head + body == line:
      return line
    if not any(map(str.isalnum, body)):
      return ""  # A speaker who says nothing.
    return re.sub(r" +([,.;:!?])", r"\1", _BLANKS.sub(" ", head + body)).strip()

  return _by_line(change, text)


_CHILDES = re.compile(r"^\s*\*([A-Z0-9]{2,4}):\s*")


def normalize_speakers(text: str) -> str:
  """Writes CHILDES tiers as dialogue: the child (*CHI:) is B, everybody else is A.

  Table 1: speaker normalisation. Several adults become one A, since a line alone tells no more.
  """
  return _by_line(
    lambda line: _CHILDES.sub(lambda m: "B: " if m[1] == "CHI" else "A: ", line), text
  )


OPERATIONS: dict[str, Callable[[str], str]] = {
  operation.__name__: operation
  for operation in (
    normalize_unicode,
    remove_control_characters,
    normalize_punctuation,
    join_contractions,
    capitalize_sentences,
    normalize_whitespace,
    remove_disfluencies,
    remove_short_content,
    lowercase_shouting,
    remove_wiki_headers,
    remove_markup,
    remove_annotation_tiers,
    remove_stage_directions,
    normalize_speakers,
  )
}
