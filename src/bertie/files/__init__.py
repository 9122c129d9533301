"""Files: where they are, and what their bytes mean.

- sources.py: find and open files, folders, patterns, URLs and data sets
- compression.py: decompress
- encodings.py: detect the encoding
- lines.py: bytes → numbered lines
- delimiters.py: what separates the cells of .csv files
- formats.py: lines → records
- protobuf.py: fields of protocol buffers, which models of other libraries have
"""
