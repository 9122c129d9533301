"""Files: where they are, and what their bytes mean.

- sources.py: find and open files, folders, patterns, URLs and data sets
- store.py: read parts of files in object stores, and try again if a request fails
- file_cache.py: keep such files on the local disk, verified and within a limit
- compression.py: decompress
- encodings.py: detect the encoding
- lines.py: bytes → numbered lines
- delimiters.py: what separates the cells of .csv files
- formats.py: lines → records
- protobuf.py: fields of protocol buffers, which models of other libraries have
- model_folder.py: the folder of a model, whose small files are read once
"""
