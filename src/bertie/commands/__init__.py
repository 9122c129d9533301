"""The verbs of the command line.

Each verb has a file with `Args`, its arguments, and `run`, which calls the public function and returns the JSON result.
The file is imported only when the verb is used, so `bertie --help` starts without PyTorch.

`parser.py` parses the arguments, `flags.py` lists them as data, `completion.py` prints scripts for shells, and `common.py`
has what several commands share. VERBS names the files of the verbs.
"""

VERBS = {
    "demo": "bertie.commands.demo",
    "tokenizer train": "bertie.commands.tokenizer_train",
    "tokenizer extend": "bertie.commands.tokenizer_extend",
    "tokenizer inspect": "bertie.commands.tokenizer_inspect",
    "tokenizer encode": "bertie.commands.tokenizer_encode",
    "tokenizer decode": "bertie.commands.tokenizer_decode",
    "prepare": "bertie.commands.prepare",
    "plan": "bertie.commands.plan",
    "pretrain": "bertie.commands.pretrain",
    "glove": "bertie.commands.glove",
    "finetune": "bertie.commands.finetune",
    "glue": "bertie.commands.glue",
    "lab": "bertie.commands.lab",
    "evaluate": "bertie.commands.evaluate",
    "score": "bertie.commands.score",
    "predict": "bertie.commands.predict",
    "embed": "bertie.commands.embed",
    "fill-mask": "bertie.commands.fill_mask",
    "convert": "bertie.commands.convert",
    "inspect": "bertie.commands.inspect",
    "likelihood": "bertie.commands.likelihood",
    "minimal-pairs": "bertie.commands.minimal_pairs",
    "next-sentence": "bertie.commands.next_sentence",
    "similarity": "bertie.commands.similarity",
    "generate": "bertie.commands.generate",
    "serve": "bertie.commands.serve",
    "prune-heads": "bertie.commands.prune_heads",
    "runs compare": "bertie.commands.runs_compare",
    "completion": "bertie.commands.completion",
}
# Verbs whose flags depend on their first word: the name of that word, and the value whose flags `--help` shows
# when it is missing ("": any).
USUAL = {
    "pretrain": ("CONFIG", "mini"),
    "finetune": ("CONFIG", "classify"),
    "evaluate": ("RUN", ""),
    "score": ("KIND", "classify"),
    "predict": ("RUN", ""),
}
