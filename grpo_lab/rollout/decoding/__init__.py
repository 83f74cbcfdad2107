"""Drawing tokens one after another: requests with growing episodes, the decoders, and their key-value cache.

`sampling_request.py` has what every sampler takes and returns. `decoder.py` has the loop and its form for a CPU,
`graph_decoder.py` its form for a GPU, and `cache.py` the keys and values that they read.
"""
