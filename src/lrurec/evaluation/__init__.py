"""How good a model is: ranks against the whole catalogue, and what they are worth."""
