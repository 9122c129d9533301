"""The HTTP server of `bertie serve`: a queue of sequences, one thread that computes, and a typed JSON API.

A request passes these files in order:

1. `connection.py` parses HTTP and closes connections that are too slow.
2. `exchange.py` checks the key, reads the body within the limits, and turns every outcome into a response, a log line and
   metrics.
3. `api.py` has one function per endpoint, with the types of `messages.py`. `openapi.py` describes them. `inputs.py` reads
   those of the tasks.
4. `operations.py` tokenizes the texts into sequences, and later turns outputs into predictions. `attention.py` bounds the
   answer with attention.
5. `service.py` holds models, queue and worker: `queue.py` keeps the sequences until `worker.py` computes them in packed
   batches.

`server.py` starts and stops it all. `limits.py` has the settings, `keys.py` the API keys. `logs.py` and `metrics.py` tell
what happens. `page.py` serves the page for browsers, a client of the API.
"""
