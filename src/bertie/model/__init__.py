"""Batch → Hidden → logits: BERT as published, on packed tokens."""
