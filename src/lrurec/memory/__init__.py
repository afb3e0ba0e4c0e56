"""What came near what: a sparse memory of transitions beside a trained model, and how much to believe it."""
