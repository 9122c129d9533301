"""Pre-training of BERT on token shards.

Read the files in this order:

1. `recipe.py`: every setting of a pre-training.
2. `pretrain.py`: from a recipe and shards to a finished run folder.
3. `feed.py`: from corpus rows to micro-batches with masked tokens and labels; `phases.py`: sequence length by part of
   the run, `growth.py`: and layers; `eval_set.py`: the held-out sequences, `long_documents.py`: whole documents for
   models with a memory; `sources.py`: several data sets; `directions.py`: the two models of a run that reads both
   ways.
4. `initial_weights.py`: random weights, or the weights of another checkpoint, and the model with all its parts.
5. `glove.py`: static word vectors, a baseline.
6. `dry_run.py`: what a run would need, without writing anything; `budget_plan.py`, `scaling.py`, `plan_report.py`: which
   size to train in a given time; `step_cost.py`: tokens, operations and seconds of a step; `repetition.py`: warnings of
   too little text; `compile_layers.py`: torch.compile on a GPU; `start_up.py`: the seconds until the first step.

The training loop itself is in `bertie.training`.
"""
