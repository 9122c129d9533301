"""Raw text → vocabulary and token shards.

Start with the two public functions, then follow their imports:

1. vocabulary.py (`train_tokenizer`, `extend_tokenizer`): readers.py yields documents, word_counts.py counts their words,
   wordpiece.py, bpe.py and merges.py, or unigram.py build the vocabulary, coverage.py reports how well it covers the text,
   accents.py decides whether accents stay.
2. prepare.py (`prepare`): document_blocks.py (read and filter documents), duplicates.py, near_duplicates.py, encode.py
   (sentences.py, then ids), shard_writer.py, statistics.py (report.html). executors.py runs the stages in parallel.
3. shard_format.py describes the result, shards.py opens it and has the baseline that counts words, token_corpus.py reads it.
   remote_shards.py fetches it from an object store.

cooccurrence.py computes initial token embeddings from finished shards.
"""
