#!/usr/bin/env bash
# From your own text to a fine-tuned classifier, step by step. Run the script again to resume after an interruption.
#
#   recipes/own-text.sh TEXT TRAIN DEV OUT        TEXT: .txt or .jsonl (.gz, .xz) or a folder; TRAIN, DEV: .tsv .csv .jsonl
#
# Environment variables: VOCAB_SIZE (entries, 30000), EVAL_SHARE (share of held-out documents, 0.01; use more for a small
# corpus), STEPS (of pre-training, 4200), RATE (learning rate of fine-tuning, 3e-4, which suits a model as small as mini).
set -euo pipefail
[ $# = 4 ] || { sed -n 's/^#   /usage: /p' "$0" >&2; exit 2; }
command -v bertie >/dev/null || { echo "bertie is not on the PATH: . .venv/bin/activate" >&2; exit 2; }
text=$1 train=$2 dev=$3 out=$4
mkdir -p "$out"

# 1. Train a WordPiece vocabulary. The same text gives the same vocabulary.
[ -d "$out/tokenizer" ] || bertie tokenizer train "$text" --vocab-size "${VOCAB_SIZE:-30000}" --out "$out/tokenizer"

# 2. Turn the text into token shards, and hold out some documents.
[ -d "$out/shards" ] ||
    bertie prepare "$text" --tokenizer "$out/tokenizer" --eval-share "${EVAL_SHARE:-0.01}" --out "$out/shards"

# 3. Pre-train with masked LM and next sentence prediction: about half an hour on two cores. Resumes.
bertie pretrain mini --data "$out/shards" --out "$out/bert" ${STEPS:+--training.steps "$STEPS"}

# 4. Fine-tune with a classification head, and score on DEV. Resumes.
bertie finetune --task classify --train "$train" --dev "$dev" --model "$out/bert" --out "$out/classifier" \
    --training.learning-rate "${RATE:-3e-4}"

# 5. Use the models.
bertie fill-mask "$out/bert" "This is a [MASK]."
bertie evaluate "$out/classifier" --data "$dev"
