"""Device headers that the modes and the tutorial share: ``layout.cuh`` (how many tokens go where), ``notify.cuh``
(signals between ranks, and the exchange of counts), ``epoch.cuh`` (operations count themselves), ``dispatch.cuh`` (what
travels beside a row) and ``sums.cuh`` (combine's arithmetic). Begin with layout and notify, as notebook 06 does.
"""
