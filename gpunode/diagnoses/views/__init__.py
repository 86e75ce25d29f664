"""Views of a snapshot that several rules share: from facts if a probe provided them, else from pasted text."""
