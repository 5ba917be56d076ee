"""No injection: the core is simply applied again to its own output, starting from e."""

from looped_lm.nn.states import RecurrentState


class Injection(RecurrentState):
  """h_0 = e; h_{r+1} = F(h_r). With one loop this is the plain stack.

  Attributes:
    state_init: As for all injections; anything but "prelude" keeps e out of the model altogether.
  """

  state_init: str = "prelude"
