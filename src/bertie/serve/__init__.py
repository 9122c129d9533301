"""The HTTP server of `bertie serve`: a queue of sequences, one thread that computes, and a typed JSON API.

A request passes these files in order:

1. `connection.py` parses HTTP and closes connections that are too slow.
2. `exchange.py` checks the key, reads the body within the limits, and turns every outcome into a response, a log line and
   metrics.
3. `dialects/` has one file for each kind of clients, with one function per endpoint and the types of its messages.
   `openapi.py` describes them.
4. `work.py` does what a request asks, in no dialect's words: sequences, their computation, predictions. `operations.py`
   says what a model offers, and turns texts into sequences. `inputs.py` reads the inputs of tasks, `tokens.py` token ids and
   vectors of tokens, `scales.py` has scores before and after the activation, `widths.py` says which widths vectors may
   have, `prompts.py` which prompt a kind of input has, `attention.py` bounds the answer with attention, and `numbers.py`
   makes numbers short.
5. `service.py` holds models, queue and worker: `queue.py` keeps the sequences until `worker.py` computes them in packed
   batches. `speed.py` learns how long that takes.

`app.py` puts the paths together, and `server.py` starts and stops it all. `front.py` and `limits.py` have the settings,
`keys.py` the API keys. `logs.py` and `metrics.py` tell
what happens. `page.py` serves the page for browsers, a client of the API.
"""
