"""The package system: the meaning of its files and answers, and the files written for it. Pure."""
