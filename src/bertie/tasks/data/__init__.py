"""Examples from files and Python values. A row that cannot be read is returned as an error in its place."""
