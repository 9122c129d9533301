"""Raw text to token shards: readers, sentences, vocabulary training (wordpiece), tokenizer, shards, prepare."""
