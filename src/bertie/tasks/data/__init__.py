"""Files and Python values → examples: one file a form. A row that cannot be read is skipped and counted, or refused."""
