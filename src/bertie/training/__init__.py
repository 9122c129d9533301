"""The training engine, shared by pre-training and fine-tuning.

The engine knows neither corpora nor tasks. `bertie.pretraining` and `bertie.finetuning` build a `TrainingJob` and call
`trainer.train`. Read the files in this order:

1. `trainer.py`: runs a job: resume, log, evaluate, save checkpoints, stop.
2. `job.py`: what a job consists of.
3. `loop.py`: the optimizer steps. `step.py`: one step: forward passes, loss, backward passes, update. `captured.py`: the
   same as recordings that a GPU repeats (CUDA graphs), with `static_inputs.py`, the tensors that these read.
4. `optimizers.py`, `muon.py` and `schedules.py`: the choices of a recipe; `parameter_groups.py`: weights that an optimizer
   treats alike; `length.py`: the end of a run after steps; `clock.py`: the end of a run with a budget of time.
5. `run_folder.py`: the files of a run; `records.py`: the contents of metrics.jsonl; `checkpoint_writer.py`: checkpoints in
   the background.
6. `distributed.py` and `rendezvous.py`: several ranks; `sharing.py`: long inputs that they share; `interrupts.py`: SIGINT and
   SIGTERM; `watchdog.py`: hangs; `memory.py`: memory use.
7. `run_report.py`, `compare.py`, `trackers/`: reports of runs.
"""
