#!/usr/bin/env bash
# Fine-tune with several processes, here two on the CPU of one machine. On GPUs, start one process for each of them.
#
#   bertie demo  # once: trains runs/demo/bert
#   bash examples/several_processes.sh
#
# MODEL, OUT and PROCESSES change the model, the run folder and the number of processes: PROCESSES=4 bash examples/…
set -euo pipefail
data=$(dirname "$0")/data

# The processes share each batch, and the first one writes the run. --standalone: they are all on this machine.
torchrun --standalone --nproc-per-node "${PROCESSES:-2}" -m bertie finetune classify --train "$data/reviews.csv" \
    --model "${MODEL:-runs/demo/bert}" --out "${OUT:-runs/examples/several_processes}"
