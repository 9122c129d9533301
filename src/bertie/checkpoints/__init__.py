"""Model folders: writing, reading and verifying them.

Read in this order, from a folder to a checkpoint in memory and back:

1. find.py: the folder of a model, or its download, and the files with its weights; pickled.py: weights that torch has pickled.
2. read.py: reads a model folder into a `Checkpoint`, checks it, and copies its weights into a model.
3. huggingface.py: config.json. families/: names of weights and configuration keys, bertie's and Hugging Face's, one file
   per family.
4. tensorflow/: configuration and weights of Google's TensorFlow checkpoints.
5. folder.py: writes a folder that `transformers` loads, with a manifest of checksums. vocabulary_growth.py: adds entries to
   the vocabulary of a checkpoint.
6. training_state.py: checkpoints of a run, which add the optimizer's state and the counters.
7. model_card.py: README.md. sentence_transformers_format.py, sentence_transformers_reader.py: how texts become vectors.
8. hub.py: downloads from the Hugging Face Hub, and uploads.
"""
