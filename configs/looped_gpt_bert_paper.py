"""Looped GPT-BERT as its paper has it (arXiv 2609.09691): additive injection, Table 3.

Shows: z_{t+1} = F(x + z_t) with 4 physical layers, 12,181,780 parameters at any number of loops.

Command: python -m looped_lm.main --config=configs/looped_gpt_bert_paper.py:4x12 \
  --workdir=runs/paper --config.data.paths=babylm_10M
Arguments, separated by commas: the loops, `4x1`, `4x3`, `4x6` or `4x12` (the default); the rows
MNTP:CLM, e.g. `1:3` (the default), `1:1`, `15:1`; `tiny` for tests.
Hardware: the paper used 8 GPUs with 32 rows each. Time: not measured here. Result to expect (the
paper's, one seed): BLiMP 71.19 for 4x12 and 71.21 for 4x3 at 1:3. Warm-up, weight decay, dropout
and EMA are not in the paper; they are those of the authors' earlier configuration.
"""

import fractions
import re

from ml_collections import config_dict

from looped_lm.configuration import sibling
from looped_lm.errors import UserError


def get_config(arguments: str = "") -> config_dict.ConfigDict:
  """The values of the experiment."""
  parts = arguments.split(",") if arguments else []
  config = sibling(__file__, "looped_gpt_bert", "tiny" if "tiny" in parts else "")
  config.model.injection.name = "add"
  for part in parts:
    if re.fullmatch(r"4x\d+", part):
      config.model.num_loops = int(part[2:])
      config.model.depth.mean_loops = float(part[2:])
      config.model.depth.max_loops = 3 * int(part[2:])
    elif re.fullmatch(r"\d+:\d+", part) and part != "0:0":
      masked, causal = map(int, part.split(":"))
      config.objective.mntp_fraction = float(fractions.Fraction(masked, masked + causal))
    elif part != "tiny":
      raise UserError(
        f"looped_gpt_bert_paper.py:{part} is unknown; arguments are 4x<loops>, "
        "<masked>:<causal> rows, and tiny, separated by commas."
      )
  return config
