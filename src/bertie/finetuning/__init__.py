"""Fine-tuning: a checkpoint and labeled examples become a model for one task.

Reading order: `recipe.py` is the configuration. `finetune.py` is the entry point: it calls `data.py` (read and tokenize
the examples; `held_out.py` splits off a dev set and a test set), `defaults.py` (learning rate and epochs), `frozen.py`
(cache hidden states for feature-based fine-tuning), and `single_run.py` (train one model) or `sweep.py` (train several,
select the best), whose steps `micro_batches.py` chooses and packs, and writes the run folder; `sweep_report.py` is the page of
several runs. `gpt.py` has GPT's input tokens and its auxiliary loss.
`glue.py` fine-tunes on all tasks of the GLUE benchmark, which `glue_tasks.py` lists.
"""
