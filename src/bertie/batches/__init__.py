"""Token shards → Batch: layouts make sequences of documents, packing lays them into rows, the loader hands out steps."""
