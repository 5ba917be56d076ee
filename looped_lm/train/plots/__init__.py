"""Pictures of a run, drawn from what it logged and what its evaluators showed."""
