"""For all rooms: the types that they exchange, and the machine they run on.

- contracts.py: `Document`, `Sequence`, `Batch`, `Targets`, `MicroBatch`, `Hidden`, `Loss`
- config.py: TOML files and keyword arguments → frozen dataclasses. own_code.py: classes of the user's own
- errors.py: mistakes of users, in one line
- console.py: progress and warnings. report.py: HTML pages. notebook.py: results that show themselves in a notebook
- storage.py: files that are whole or absent. untrusted.py: files of others
- runtime.py: devices, versions, environment. threads.py: settings that torch reads when it loads
- seeding.py: random numbers as a function of integers
"""
