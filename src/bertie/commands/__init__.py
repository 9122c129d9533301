"""One file a verb: `Args`, its flags, and `run`, which calls the public function and returns what --json prints.

Imported only when the verb is used, so that `bertie --help` is instant.
"""
