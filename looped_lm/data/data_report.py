"""A preparation's report, for people."""

from typing import Any


def text(report: dict[str, Any]) -> str:
  """Writes a report of `building.build` out as plain text."""
  overlap = report["validation_texts_also_in_training"]
  lines = [f"Rows of {report['seq_len']} positions, packing {report['packing']!r}", ""]
  names = ("documents", "words", "tokens", "tokens_per_word", "rows", "pieces")
  shares = ("token_fraction", "fill_fraction")
  lines.append(f"{'':<18}" + "".join(f"{split:>16}" for split in report["splits"]))
  for name in names + shares:
    cells = [facts[name] for facts in report["splits"].values()]
    lines.append(f"{name:<18}" + "".join(f"{_number(cell):>16}" for cell in cells))
  lines += [
    "",
    f"Vocabulary: {report['vocab_size']:,} tokens.",
    f"Validation documents whose text is also trained on: {overlap:,}.",
    "",
    "Sources (documents and words after cleaning)",
  ]
  for source in report["sources"]:
    lines.append(
      f"  {source['split']}: {source['name']}, {source['bytes']:,} bytes, "
      f"{source['documents']:,} documents, {source['words']:,} words, "
      f"sha256 {source['sha256'][:16]}"
    )
  lines += ["", "Cleaning" if report["cleaning"] else "Cleaning: none"]
  for name, count in report["cleaning"].items():
    lines.append(
      f"  {name}: of {count['documents']:,} documents changed {count['changed']:,}, removed "
      f"{count['removed']:,}, merged {count['merged']:,}; of {count['words_before']:,} words "
      f"removed {count['words_removed']:,}"
    )
    for sample in count["samples"]:
      lines.append(f"    {sample['file']}, line {sample['line']}")
      lines.append(f"      before: {sample['before']!r}")
      lines.append(f"      after:  {sample['after']!r}")
  return "\n".join(lines) + "\n"


def _number(value: float) -> str:
  return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
