"""View a snapshot for several rules: by facts where a probe gave them, else by pasted text."""
