"""Models: from packed histories to hidden vectors. Knows items by number, not users."""
