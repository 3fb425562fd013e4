"""Encoders that ONNX Runtime computes: neither torch nor transformers is imported to answer a question.

``folder.py`` files, checks and fingerprint · ``graph.py`` the graph's file · ``pooling.py`` what follows the graph, in
NumPy · ``encoder.py`` the encoder · ``export.py`` a sentence-transformers model as such a folder
"""
