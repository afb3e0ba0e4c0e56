"""The parts of models. Knows tensors, not users."""
