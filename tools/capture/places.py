"""A site as a plain tuple: the recorder looks one up for every tensor it meets, and validated models are slow keys."""

from __future__ import annotations

from typing import NamedTuple

from samebits.tools.schema.sites import Site


class Place(NamedTuple):
    """See Site."""

    module: str
    port: str
    call: int = 0
    op: str = ""
    index: int = 0  # type: ignore[assignment]

    @classmethod
    def of(cls, site: Site) -> Place:
        """The place of a site."""
        return cls(site.module, site.port, site.call, site.op, site.index)

    @property
    def site(self) -> Site:
        """The site of a place."""
        return Site(module=self.module, port=self.port, call=self.call, op=self.op, index=self.index)
