"""What several rules ask of a snapshot: from facts where a probe gave them, else from what was pasted."""
