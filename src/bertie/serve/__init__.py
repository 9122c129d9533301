"""The HTTP server of `bertie serve`: a queue of sequences, one thread that computes, and a typed JSON API.

A request passes these files in order:

1. `connection.py` parses HTTP and closes connections that are too slow.
2. `exchange.py` checks the key, reads the body within the limits, and turns every outcome into a response, a log line and
   metrics.
3. `dialects/` has one file for each kind of clients: its messages, and functions that turn a request into an `Ask` and
   results into the answer. `openapi.py` describes them.
4. `ask.py` says what a client may ask, in no dialect's words. `vectors.py`, `scores.py` and `predictions.py` answer it.
   `operations.py` says what a model offers, and turns texts into sequences. `numbers.py` makes numbers short.
5. `service.py` holds models, queue and worker: `queue.py` keeps the sequences until `worker.py` computes them in packed
   batches. `speed.py` learns how long that takes.

`app.py` puts the paths together, and `server.py` starts and stops it all. `limits.py` has the settings, `keys.py` the API
keys. `logs.py` and `metrics.py` tell what happens. `page.py` serves the page for browsers, a client of the API.
"""
