"""Raw text to token shards: vocabulary training, tokenization and corpus preparation.

Start with the three public functions, then follow their imports:

1. vocabulary.py (`train_tokenizer`, `extend_tokenizer`): readers.py yields documents, word_counts.py counts their words,
   wordpiece.py, bpe.py and merges.py, or unigram.py build the vocabulary, coverage.py reports how well it covers the text,
   accents.py decides whether accents stay.
2. tokenizer.py (`Tokenizer`): text to token ids and back, by one of the backends of backend.py: wordpiece_backend.py,
   bpe_backend.py or, for all other kinds, library_backend.py, with the roles of special_tokens.py. tokenizer_folder.py reads
   the tokenizer of a folder: tokenizer_settings.py its settings; tokenizer_classes.py says what each class of transformers
   makes of them and of its vocabulary (sentencepiece.py); transformers_tokenizer.py asks transformers for all other classes.
   engines.py has helpers for the library `tokenizers`. word_cache.py does the same as the backends, faster on running text,
   in the portions of batching.py. truncation.py turns texts of any length into model inputs of at most `max_length` tokens.
   valid_texts.py refuses what is no text. added_tokens.py adds tokens to a tokenizer, gpt_inputs.py those that GPT puts
   around texts.
3. prepare.py (`prepare`): document_blocks.py (read and filter documents), duplicates.py, encode.py (sentences.py, then ids),
   shard_writer.py, statistics.py (report.html). executors.py runs the stages in parallel.
4. shard_format.py describes the result, shards.py opens it and has the baseline that counts words, corpus.py reads it.
   remote_shards.py fetches it from an object store.

cooccurrence.py computes initial token embeddings from finished shards. lowercase.py has a tokenizer that lowercases first.
spelling.py spells tokens for models that read characters.
"""
