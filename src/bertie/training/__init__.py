"""The loop, optimizers, schedules, the run folder; pretrain and finetune compose the rooms above."""
