"""Checkpoints of Google's BERT, ALBERT and ELECTRA, read and written without TensorFlow.

Read in this order:

1. table.py: the index, a sorted table of keys and messages (the format of LevelDB and of protocol buffers).
2. tensor_bundle.py: the tensors of a checkpoint: `PREFIX.index` and `PREFIX.data-00000-of-00001`, ….
3. names.py: names of Google's variables and of Hugging Face's weights.
4. folder.py: a folder with bert_config.json, vocab.txt and a checkpoint.
"""
