"""Who may look at whom, as pictures: rows are queries, columns are keys."""

import jax.numpy as jnp
import pytest

from looped_lm import visibility

TOKENS = jnp.zeros((1, 4), jnp.int32)


def picture(see_BTS):
  return "\n".join(" ".join("x" if see else "." for see in row) for row in see_BTS[0])


@pytest.mark.parametrize(
  ("order", "segments", "expected"),
  [
    (visibility.causal, [1, 1, 1, 1], "x . . .\nx x . .\nx x x .\nx x x x"),
    (visibility.bidirectional, [1, 1, 1, 1], "x x x x\nx x x x\nx x x x\nx x x x"),
    (visibility.causal, [1, 1, 2, 2], "x . . .\nx x . .\n. . x .\n. . x x"),
    (visibility.bidirectional, [1, 1, 2, 2], "x x . .\nx x . .\n. . x x\n. . x x"),
    (visibility.bidirectional, [1, 1, 1, 0], "x x x .\nx x x .\nx x x .\n. . . ."),
  ],
)
def test_visible(order, segments, expected):
  see_BTS = visibility.visible(order(TOKENS), jnp.array([segments], jnp.int32))
  assert picture(see_BTS) == expected
