"""Raw text to token shards: vocabulary training, tokenization and corpus preparation.

Start with the three public functions, then follow their imports:

1. `vocabulary` (`train_tokenizer`, `extend_tokenizer`): `readers` yields documents, `word_counts` counts their words,
   `wordpiece` and `merges` build the vocabulary, `coverage` reports how well it covers the text.
2. `tokenizer` (`Tokenizer`): text to token ids and back. `word_cache` does the same faster on running text.
   `truncation` turns texts of any length into model inputs of at most `max_length` tokens.
3. `prepare` (`prepare`): `document_blocks` (read and filter documents), `duplicates`, `encode` (`sentences`, then ids),
   `shards` (the file format, for writing and reading), `statistics` (report.html). `executors` runs the stages in
   parallel.

`cooccurrence` computes initial token embeddings from finished shards. `read_counts` counts skipped records.
"""
