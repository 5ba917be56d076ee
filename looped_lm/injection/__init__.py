"""How a loop takes in the prelude's output, one file each."""
