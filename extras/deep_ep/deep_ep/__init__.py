"""``import deep_ep`` is ``ep_lib.compat.deep_ep``: this module puts that one in its place."""

from ep_lib.compat.deep_ep import install_alias

is_alias_of_ep_lib = True
install_alias()
