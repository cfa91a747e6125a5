"""A recurrent encoder-decoder with attention: its pairs of sentences, its model, its measures.

A library without Hydra and Lightning; what trains it is in `attnlab.training`.
"""
