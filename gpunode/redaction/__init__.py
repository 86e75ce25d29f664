"""What may leave a node: secrets out of text and configuration, and, when asked, every identity, too."""
