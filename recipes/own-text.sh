#!/usr/bin/env bash
# From your own text to a fine-tuned classifier, step by step. Every command can be stopped and called again.
#
#   recipes/own-text.sh TEXT TRAIN DEV OUT        TEXT: .txt or .jsonl (.gz, .xz) or a folder; TRAIN, DEV: .tsv .csv .jsonl
#
# In the environment: VOCAB_SIZE (30000), EVAL_SHARE of the documents (0.01; more for few documents), STEPS of pre-training
# (4200) and the learning RATE of fine-tuning (3e-4, for a model as small as mini).
set -euo pipefail
[ $# = 4 ] || { sed -n 's/^#   /usage: /p' "$0" >&2; exit 2; }
command -v bertie >/dev/null || { echo "bertie is not on the PATH: . .venv/bin/activate" >&2; exit 2; }
text=$1 train=$2 dev=$3 out=$4
mkdir -p "$out"

# 1. A WordPiece vocabulary: the same text gives the same bytes.
[ -d "$out/tokenizer" ] || bertie tokenizer train "$text" --vocab-size "${VOCAB_SIZE:-30000}" --out "$out/tokenizer"

# 2. Token shards, some documents held out.
[ -d "$out/shards" ] ||
    bertie prepare "$text" --tokenizer "$out/tokenizer" --eval-share "${EVAL_SHARE:-0.01}" --out "$out/shards"

# 3. Pre-training with masked LM and next sentence prediction: half an hour on two cores. Resumes.
bertie pretrain mini --data "$out/shards" --out "$out/bert" ${STEPS:+--training.steps "$STEPS"}

# 4. Fine-tuning with one added layer, and the scores on DEV. Resumes.
bertie finetune --task classify --train "$train" --dev "$dev" --model "$out/bert" --out "$out/classifier" \
    --training.learning-rate "${RATE:-3e-4}"

# 5. Ask it.
bertie fill-mask "$out/bert" "This is a [MASK]."
bertie evaluate "$out/classifier" --data "$dev"
