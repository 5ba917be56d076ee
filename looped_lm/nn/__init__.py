"""The parts that blocks, injections and models are made of."""
