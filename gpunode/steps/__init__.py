"""The steps of a recipe, one file each, in the order of ``table``. Pure."""
