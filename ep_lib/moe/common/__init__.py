"""Device headers that the modes and the tutorial share: ``layout.cuh`` (counts of tokens by destination),
``notify.cuh`` (signals between ranks, and the exchange of counts), ``epoch.cuh`` (numbering of operations),
``dispatch.cuh`` (a row's metadata) and ``sums.cuh`` (combine's arithmetic). Begin with layout and notify, as notebook
06 does.
"""
