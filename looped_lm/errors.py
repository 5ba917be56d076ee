"""The one error a user's mistake raises."""


class UserError(ValueError):
  """A value the user gave cannot work: says the value, what is allowed and what to do.

  `looped_lm.main` prints it as one line and exits with code 1; any other exception is a defect of
  the program and keeps its traceback.
  """
