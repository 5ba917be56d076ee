"""When a word is learnt, from a curve: by children over months, by a model over words read.

As the BabyLM pipeline of July 2026 computes it, after Chang & Bergen (2022).
"""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
import numpy as np
from scipy import optimize, stats

# A curve of fewer points is not fitted, and fewer words are not correlated.
FEWEST = 3
_STEEP = 1e-6


def child_age(months_N: Float[np.ndarray, " N"], share_N: Float[np.ndarray, " N"]) -> float | None:
  """The age in months at which half of the children know a word.

  Args:
    months_N: Ages, rising.
    share_N: Share of children of each age who do; NaN where it is not known.

  Returns:
    Where the fitted curve crosses one half; None where it does not within the ages.
  """
  known_N = ~np.isnan(share_N)
  months_N, share_N = months_N[known_N], share_N[known_N]
  if len(months_N) < FEWEST:
    return None
  first, last = float(months_N[0]), float(months_N[-1])
  month = _crossing(
    months_N,
    share_N,
    level=0.5,
    guess=(1.0, 0.1, float(months_N.mean()), 0.0),
    lowest=(0.0, 0.0, first, -0.5),
    highest=(2.0, 1.0, last, 0.5),
    evaluations=1000,
    flattest=0.0,
  )
  return month if month is not None and first <= month <= last else None


def model_age(
  words_N: Float[np.ndarray, " N"], nats_N: Float[np.ndarray, " N"], *, ceiling: float
) -> float | None:
  """The logarithm (base 10) of the words read at which a model has half learnt a word.

  Args:
    words_N: Words read at each checkpoint, rising.
    nats_N: Surprisal of the word there.
    ceiling: Its surprisal where every token is equally likely.

  Returns:
    Where the fitted curve crosses the middle between the ceiling and the lowest surprisal; None
    where it does not between the first and the last checkpoint.
  """
  if len(words_N) < FEWEST:
    return None
  log_N, rising_N = np.log10(words_N + 1.0), -nats_N
  low, high = float(rising_N.min()), float(rising_N.max())
  spread = high - low
  log_words = _crossing(
    log_N,
    rising_N,
    level=-(ceiling + float(nats_N.min())) / 2.0,
    guess=(spread, 1.0, float(log_N.mean()), low),
    lowest=(0.0, 0.0, float(log_N.min()) - 1.0, low - 2.0 * spread - 1.0),
    highest=(10.0 * spread + 1.0, 100.0, float(log_N.max()) + 1.0, high + 1.0),
    evaluations=20000,
    flattest=_STEEP,
  )
  if log_words is None or not words_N[0] <= 10.0**log_words - 1.0 <= words_N[-1]:
    return None
  return log_words


def correlation(
  model: Mapping[str, float], child: Mapping[str, float]
) -> tuple[float, float] | None:
  """Pearson's r over the words of both, and the chance of as much without any connection.

  Returns:
    (r, p); None for fewer than three words, or where one side is flat.
  """
  words = [word for word in model if word in child]
  if len(words) < FEWEST:
    return None
  x_N, y_N = (np.array([side[word] for word in words]) for side in (model, child))
  if np.ptp(x_N) == 0 or np.ptp(y_N) == 0:
    return None
  found: Any = stats.pearsonr(x_N, y_N)
  return float(found.statistic), float(found.pvalue)


def _crossing(
  x_N: Float[np.ndarray, " N"],
  y_N: Float[np.ndarray, " N"],
  *,
  level: float,
  guess: tuple[float, ...],
  lowest: tuple[float, ...],
  highest: tuple[float, ...],
  evaluations: int,
  flattest: float,
) -> float | None:
  """Where the sigmoid a / (1 + exp(-b(x - c))) + d that fits best has a level, None for nowhere."""
  try:
    with np.errstate(over="ignore"):
      fitted = optimize.least_squares(
        lambda parameters: _sigmoid(x_N, *parameters) - y_N,
        guess,
        bounds=(lowest, highest),
        max_nfev=evaluations,
      )
  except ValueError:  # It would begin outside its bounds.
    return None
  if not fitted.success:
    return None
  a, b, c, d = map(float, fitted.x)
  if a <= flattest or b <= flattest or not d < level < a + d:
    return None
  return c - float(np.log(a / (level - d) - 1.0)) / b


def _sigmoid(x_N: np.ndarray, a: float, b: float, c: float, d: float) -> np.ndarray:
  return a / (1.0 + np.exp(-b * (x_N - c))) + d
