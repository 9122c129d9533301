"""Probes: small classifiers on the hidden states of a layer.

probes.py trains dependency_probes.py, layer_probes.py and structural_probe.py on the words of probe_data.py.
"""
