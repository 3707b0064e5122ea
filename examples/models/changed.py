"""What the models of this folder share: a protocol in which one line is changed."""


def changed(source: str, right: str, wrong: str) -> str:
    """The source with ``wrong`` in place of ``right``, which stands in it once."""
    if source.count(right) != 1:
        raise ValueError(f"the source has {right!r} {source.count(right)} times; name what stands there once")
    return source.replace(right, wrong)
