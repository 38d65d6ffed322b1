"""IR to PTX text."""
