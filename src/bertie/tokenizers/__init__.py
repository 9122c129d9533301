"""Text → token ids and back.

- tokenizer.py (`Tokenizer`), by one of three backends: wordpiece_backend.py, bpe_backend.py or, for all other kinds,
  library_backend.py.
- folder.py reads the tokenizer of a model folder; classes.py reads its settings, and says how each class of transformers
  reads them and its vocabulary (sentencepiece.py); transformers_tokenizer.py asks transformers for all other classes.
- special_tokens.py: the roles of [CLS], [SEP], [MASK], …, and the added tokens of the library `tokenizers`. added_tokens.py
  adds tokens, gpt_inputs.py those that GPT puts around texts. lowercase.py lowercases first, and characters.py splits
  text into characters. spelling.py spells tokens for models that read characters.
- truncation.py turns texts of any length into model inputs of at most `max_length` tokens. valid_texts.py refuses values
  that are no text.
- word_cache.py encodes running text faster, in the portions of batching.py.
"""
