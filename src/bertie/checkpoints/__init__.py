"""Model folders: writing, reading and verifying them.

Read in this order:

1. families/: names of weights and configuration keys, bertie's and Hugging Face's, one file per family.
2. huggingface.py: config.json. head_shapes.py: which heads the weights are.
3. find.py: the folder of a model. weight_files.py, pickled.py, mapped.py: its files with weights.
   named_weights.py: the weights under bertie's names, and those without a place.
4. tensorflow/: configuration and weights of Google's TensorFlow checkpoints.
5. checkpoint.py: a checkpoint in memory. read.py: reads a model folder into it, and checks it. folder.py: writes one that
   `transformers` loads, with a manifest of checksums. vocabulary_growth.py: adds entries to the vocabulary of one.
6. training_state.py: checkpoints of a run, which add the optimizer's state and the counters.
7. model_card.py: README.md. sentence_transformers_format.py, sentence_transformers_reader.py,
   sentence_transformers_modules.py: how texts become vectors.
8. hub.py: uploads to the Hugging Face Hub.
"""
