"""Model folders: writing, reading and verifying them.

Read in this order:

1. families/: names of weights and configuration keys, bertie's and Hugging Face's, one file per family.
2. huggingface.py: config.json.
3. folder.py: a model folder that `transformers` loads, with a manifest of checksums.
4. training_state.py: checkpoints of a run, which add the optimizer's state and the counters.
5. tensorflow/: the same for checkpoints of Google's TensorFlow code.
6. model_card.py, sentence_transformers_format.py: more files of a model folder.
"""
