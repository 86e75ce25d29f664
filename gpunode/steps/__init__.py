"""What a recipe asks of a node, one file per step; ``table`` has their order. Pure."""
