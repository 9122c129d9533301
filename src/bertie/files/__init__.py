"""Text files: where they are, and what their bytes mean.

- sources.py: find and open files, folders, patterns, URLs and data sets
- compression.py: decompress
- encodings.py: detect the encoding
- lines.py: bytes → numbered lines
- formats.py: lines → records
"""
