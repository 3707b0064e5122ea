"""Makes ``import deep_ep`` import ``ep_lib.compat.deep_ep``: that module replaces this one."""

from ep_lib.compat.deep_ep import install_alias

is_alias_of_ep_lib = True
install_alias()
